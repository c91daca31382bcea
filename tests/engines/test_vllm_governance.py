"""An engine whose settings would leak around the governed cache does not start."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvrun.engines.settings import AdapterSettingsError
from kvrun.engines.vllm import compat
from kvrun.engines.vllm.compat import EngineVersionError, require_supported_version
from kvrun.engines.vllm.governance import EngineSettingError, check_engine
from kvrun.engines.vllm.settings import adapter_settings
from support.daemon import Daemon
from support.engine import Engine

pytestmark = pytest.mark.engine


def engine(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "role": "kv_both",
        "policy": "recompute",
        "events": None,
        "algorithm": "sha256_cbor",
        **changed,
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role=given["role"], kv_load_failure_policy=given["policy"]
        ),
        kv_events_config=given["events"],
        cache_config=SimpleNamespace(prefix_caching_hash_algo=given["algorithm"]),
    )


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_USE_RUST_FRONTEND", "VLLM_SERVER_DEV_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_governed_engine_passes(algorithm: str) -> None:
    check_engine(engine(algorithm=algorithm))
    check_engine(engine(events=SimpleNamespace(enable_kv_cache_events=False)))


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"events": SimpleNamespace(enable_kv_cache_events=True)}, "KV event"),
        ({"algorithm": "xxhash"}, "xxhash"),
        ({"algorithm": "xxhash_cbor"}, "xxhash_cbor"),
        ({"policy": "fail"}, "kv_load_failure_policy"),
        ({"role": "kv_producer"}, "kv_role"),
        ({"role": "kv_consumer"}, "kv_role"),
    ],
    ids=str,
)
def test_a_setting_that_leaks_is_refused_with_what_to_do(
    changed: dict[str, Any], names: str
) -> None:
    with pytest.raises(EngineSettingError, match=names) as caught:
        check_engine(engine(**changed))
    assert caught.value.hint


@pytest.mark.parametrize("variable", ["VLLM_USE_RUST_FRONTEND", "VLLM_SERVER_DEV_MODE"])
def test_a_variable_that_opens_a_way_around_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "0")
    check_engine(engine())
    monkeypatch.setenv(variable, "1")
    with pytest.raises(EngineSettingError, match=variable):
        check_engine(engine())


@pytest.mark.parametrize("argument", ["--grpc", "--grpc=true", "--grpc-port=50051", "--grpc_port"])
def test_a_server_that_runs_no_middleware_is_refused(
    argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "grpc", "--port", "8000"])
    check_engine(engine())
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "m", argument])
    with pytest.raises(EngineSettingError, match="--grpc is set") as caught:
        check_engine(engine())
    assert caught.value.hint == "remove --grpc"


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "0.3.2"])
def test_another_minor_of_vllm_is_refused_by_both_numbers(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "engine_version", lambda: version)
    with pytest.raises(EngineVersionError, match=rf"vLLM {version} .* 0\.32\.x") as caught:
        require_supported_version()
    assert "vllm>=0.32,<0.33" in str(caught.value.hint)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.5+cpu", "0.32.1rc1", "0.32.1.dev3+g1"])
def test_every_patch_of_the_minor_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "engine_version", lambda: version)
    assert require_supported_version() == version


def test_the_adapter_says_which_of_its_settings_is_wrong(tmp_path: Path) -> None:
    token = tmp_path / "engine.token"
    socket = str(tmp_path / "instance.sock")
    with pytest.raises(AdapterSettingsError, match=r"engine\.token"):
        adapter_settings({"kvrun.socket": socket}, {})
    token.write_text("t0ken\n")
    assert adapter_settings({"kvrun.socket": socket}, {}).token == "t0ken"
    assert adapter_settings({}, {"KVRUN_SOCKET": socket}).socket == Path(socket)
    with pytest.raises(AdapterSettingsError, match=r"'kvrun\.sokcet'"):
        adapter_settings({"kvrun.sokcet": socket}, {})
    for extra in ({}, {"kvrun.socket": 7}):
        with pytest.raises(AdapterSettingsError, match="socket"):
            adapter_settings(extra, {})


def test_a_real_engine_that_fails_on_bad_blocks_does_not_start(
    daemon: Daemon, tiny_llama: Path, module_folder: Path
) -> None:
    log = module_folder / "engine.log"
    with pytest.raises(RuntimeError):
        Engine(tiny_llama, daemon.socket, log, transfer={"kv_load_failure_policy": "fail"})
    assert "kv_load_failure_policy is 'fail'" in log.read_text()
