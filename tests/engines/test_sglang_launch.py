"""What kvrun starts SGLang with, and what a deployment cannot change about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.engines.sglang.governance import check_engine
from kvrun.engines.sglang.installed import has_gpu
from kvrun.engines.sglang.launch import ALLOWED, engine_command
from kvrun.errors import KvrunError
from kvrun.launch.engines import check_engine_options


def config(engine: str = "", transport: str = "tcp") -> KvrunConfig:
    text = (
        '[deployment]\nmodel = "/m"\nserved_model_name = "x"\ncontext_window = 1024\n'
        f'[engine]\nkind = "sglang"\ntransport = "{transport}"\nport = 8111\n{engine}\n'
    )
    return parse_config(text, {}, source=Path("/srv/kv/kvrun.toml"))


def parsed(command: list[str]) -> SimpleNamespace:
    """The options as SGLang's parser would give them: the last of a name counts."""
    options: dict[str, object] = {"disable_radix_cache": False}
    for at, word in enumerate(command):
        if word.startswith("--"):
            value: object = command[at + 1] if at + 1 < len(command) else "--"
            flag = str(value).startswith("--")
            options[word[2:].replace("-", "_")] = True if flag else value
    return SimpleNamespace(**options)


@pytest.mark.parametrize("extra", ["", "extra_args = ['--random-seed', '7']", "block_size = 16"])
def test_what_kvrun_starts_is_what_the_running_engine_is_checked_for(extra: str) -> None:
    command, environment = engine_command(config(extra), cpus=[0, 1])
    options = parsed(command)
    check_engine(options)
    assert (options.radix_cache_backend, options.host, options.port) == (
        "kvrun", "127.0.0.1", "8111",
    )  # fmt: skip
    assert "/srv/kv/kvrun-data/run/instance.sock" in options.hicache_storage_backend_extra_config
    assert environment["KVRUN_ENGINE_TOKEN_FILE"] == "/srv/kv/kvrun-data/run/engine.token"


def test_without_kvrun_it_keeps_its_own_ways_and_knows_no_daemon() -> None:
    command, environment = engine_command(config(), connector=False)
    assert "kvrun" not in " ".join(command[3:])
    assert "KVRUN_ENGINE_TOKEN_FILE" not in environment


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("extra_args = ['--radix-cache-backend', 'default']", "--radix-cache-backend"),
        ("extra_args = ['--radix-cache=default']", "--radix-cache"),
        ("extra_args = ['--log-requests']", "--log-requests"),
        ("extra_args = ['--config', 'other.yaml']", "--config"),
        ("extra_args = ['--random-seed']", "needs a value"),
        ("env = { SGLANG_PLUGINS = 'other' }", "SGLANG_PLUGINS"),
        ("env = { KVRUN_SOCKET = '/x' }", "KVRUN_SOCKET"),
        ("tensor_parallel_size = 2", "tensor_parallel_size"),
    ],
)
def test_an_operators_override_is_refused_before_anything_starts(settings: str, told: str) -> None:
    with pytest.raises(KvrunError, match=told):
        check_engine_options(config(settings), {})


def test_a_socket_that_sglang_cannot_listen_on_is_refused() -> None:
    with pytest.raises(KvrunError, match="SGLang listens on TCP only"):
        check_engine_options(config(transport="unix"), {})


def test_a_variable_of_the_environment_cannot_leave_the_plugin_out() -> None:
    with pytest.raises(KvrunError, match="SGLANG_PLUGINS"):
        check_engine_options(config(), {"SGLANG_PLUGINS": "other"})


def test_no_allowed_option_is_one_that_kvrun_governs() -> None:
    command, _ = engine_command(config())
    governed = set(command[command.index("--radix-cache-backend") :])
    assert not governed & set(ALLOWED)


@pytest.mark.parametrize(("devices", "gpu"), [([], False), (["nvidia0"], True), (["kfd"], True)])
def test_a_gpu_is_known_by_its_device(tmp_path: Path, devices: list[str], gpu: bool) -> None:
    (tmp_path / "nvidiactl").touch()
    for name in devices:
        (tmp_path / name).touch()
    assert has_gpu(tmp_path) is gpu
