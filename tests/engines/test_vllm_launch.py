"""What kvrun starts vLLM with, and what a deployment cannot change about it."""

import importlib.metadata
import json
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.engines.vllm.cli_shim import version_lookup
from kvrun.engines.vllm.launch import (
    GOVERNED_FLAGS,
    GOVERNED_VARIABLES,
    EngineOptionError,
    check_variables,
    cpu_binding,
    engine_command,
)


def config(text: str = "") -> KvrunConfig:
    return parse_config(text, {}, source=Path("/srv/kv/kvrun.toml"))


def value(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def test_the_cache_is_governed_by_default() -> None:
    command, environment = engine_command(
        config('[deployment]\nmodel = "/m"\nserved_model_name = "x"\ncontext_window = 4096')
    )
    assert command[1:5] == ["-m", "kvrun.engines.vllm.cli_shim", "serve", "/m"]
    transfer = json.loads(value(command, "--kv-transfer-config"))
    assert transfer["kv_connector"] == "KvrunConnector"
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert transfer["kv_connector_extra_config"] == {
        "kvrun.socket": "/srv/kv/kvrun-data/run/instance.sock"
    }
    assert value(command, "--prefix-caching-hash-algo") == "sha256_cbor"
    assert value(command, "--mm-processor-cache-gb") == "0"
    assert value(command, "--max-model-len") == "4096"
    assert value(command, "--uds") == "/srv/kv/kvrun-data/run/engine.sock"
    assert "--enable-prompt-tokens-details" in command
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert environment["KVRUN_ENGINE_TOKEN_FILE"] == "/srv/kv/kvrun-data/run/engine.token"


def test_over_tcp_the_engine_listens_on_loopback_only() -> None:
    command, _ = engine_command(config('[engine]\ntransport = "tcp"\nport = 8123'))
    assert value(command, "--host") == "127.0.0.1"
    assert value(command, "--port") == "8123"
    assert "--uds" not in command


def test_the_engine_settings_are_passed_on() -> None:
    command, environment = engine_command(
        config(
            '[deployment]\ndtype = "float32"\n[engine]\nblock_size = 32\n'
            'kv_cache_bytes = "1GiB"\nmax_num_seqs = 4\nenforce_eager = true\n'
            'omp_threads_bind = "0-1"\ntensor_parallel_size = 2\n'
            'extra_args = ["--seed", "7"]\nenv = {HF_HUB_OFFLINE = "1"}'
        )
    )
    assert value(command, "--dtype") == "float32"
    assert value(command, "--block-size") == "32"
    assert value(command, "--kv-cache-memory-bytes") == str(2**30)
    assert value(command, "--max-num-seqs") == "4"
    assert value(command, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" in command
    assert command[-2:] == ["--seed", "7"]
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_without_the_connector_the_engine_is_otherwise_the_same() -> None:
    governed, _ = engine_command(config())
    plain, environment = engine_command(config(), connector=False)
    at = governed.index("--kv-transfer-config")
    assert governed[:at] + governed[at + 2 :] == plain
    assert "KVRUN_ENGINE_TOKEN_FILE" not in environment


@pytest.mark.parametrize(
    "argument",
    [
        *(f"--{flag}" for flag in GOVERNED_FLAGS),
        "--kv_transfer_config",
        "--kv-transfer-config.kv_role=kv_consumer",
        "--kv-events-config={}",
        "--kv-transfer",
        "--prefix-caching-hash-algo=xxhash",
        "--no-enable-prompt-tokens-details",
        "-tp",
        "--kv-transfer-config+",
    ],
)
def test_a_governed_flag_is_refused_in_every_spelling(argument: str) -> None:
    with pytest.raises(EngineOptionError) as caught:
        engine_command(config(f"[engine]\nextra_args = [{json.dumps(argument)}]"))
    assert repr(argument) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "argument",
    ["--seed", "--gpu-memory-utilization=0.5", "--kv-cache-metrics", "--config-format", "-1", "--"],
)
def test_other_flags_and_values_pass(argument: str) -> None:
    command, _ = engine_command(config(f"[engine]\nextra_args = [{json.dumps(argument)}]"))
    assert argument in command


@pytest.mark.parametrize("name", [*GOVERNED_VARIABLES, "KVRUN_ENGINE_TOKEN_FILE"])
def test_a_governed_variable_is_refused(name: str) -> None:
    with pytest.raises(EngineOptionError, match=name):
        engine_command(config(f'[engine]\nenv = {{{name} = "1"}}'))


def test_an_inherited_variable_is_refused_unless_it_is_off() -> None:
    check_variables({"VLLM_SERVER_DEV_MODE": "0", "KVRUN_TOKEN_FD": "3"}, "the environment")
    with pytest.raises(EngineOptionError, match="the environment sets VLLM_SERVER_DEV_MODE"):
        check_variables({"VLLM_SERVER_DEV_MODE": "1"}, "the environment")


def test_threads_are_pinned_to_every_core_and_shared_between_workers() -> None:
    assert cpu_binding([1, 0], 1) == "0,1"
    assert cpu_binding([0, 1, 2, 3, 4], 2) == "0,1|2,3"
    assert cpu_binding([0], 2) is None


def test_the_cpu_build_is_found_under_vllms_name() -> None:
    def installed(name: str) -> str:
        if name == "vllm-cpu":
            return "0.32.0"
        raise importlib.metadata.PackageNotFoundError(name)

    lookup = version_lookup(installed)
    assert lookup("vllm") == "0.32.0+cpu"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        lookup("absent")
    assert version_lookup(lambda _: "0.32.1")("vllm") == "0.32.1"
