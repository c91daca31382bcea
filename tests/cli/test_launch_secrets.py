"""Launch tokens: who gets which, by which way, and what is left of them."""

import json
import os
import stat
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.launch.secrets import (
    Launch,
    LaunchSecretsError,
    gateway_secrets,
    instance_secrets,
    remove_files,
)


@pytest.fixture
def config(tmp_path: Path) -> KvrunConfig:
    return parse_config("", {}, source=tmp_path / "kvrun.toml")


def through_descriptor(payload: bytes) -> dict[str, str]:
    reader, writer = os.pipe()
    os.write(writer, payload)
    os.close(writer)
    return {"KVRUN_TOKEN_FD": str(reader)}


def test_daemon_and_gateway_read_their_parts_from_their_descriptors(config: KvrunConfig) -> None:
    launch = Launch.create()
    daemon = instance_secrets(config, through_descriptor(launch.for_instance()))
    gateway = gateway_secrets(config, through_descriptor(launch.for_gateway()))
    assert gateway.token == daemon.gateway_token == launch.gateway_token
    assert daemon.engine_token == launch.engine_token
    assert daemon.admin_token == launch.admin_token
    assert daemon.claim_public_keys == (gateway.claim_key.public_key().public_bytes_raw(),)
    assert not config.layout.run.exists(), "a descriptor needs no file"


def test_no_process_gets_what_is_anothers() -> None:
    launch = Launch.create()
    seed = launch.claim_key.private_bytes_raw().hex().encode()
    assert seed not in launch.for_instance()
    for token in (launch.engine_token, launch.admin_token):
        assert token.encode() not in launch.for_gateway()


def test_every_launch_has_other_secrets() -> None:
    one, two = Launch.create(), Launch.create()
    tokens = {
        token
        for launch in (one, two)
        for token in (launch.engine_token, launch.gateway_token, launch.admin_token)
    }
    assert len(tokens) == 6
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)
    assert one.claim_public_key != two.claim_public_key


def test_the_files_of_a_launch_are_private_hold_no_signing_key_and_go_away(
    config: KvrunConfig,
) -> None:
    launch = Launch.create()
    launch.write_files(config.layout)
    run = config.layout.run
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    files = {path.name: path for path in run.iterdir()}
    assert sorted(files) == ["admin.token", "claim.pub", "engine.token"]
    seed = launch.claim_key.private_bytes_raw()
    for path in files.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert seed.hex() not in path.read_text()
        assert launch.gateway_token not in path.read_text()
    remove_files(config.layout)
    assert list(run.iterdir()) == []


def test_secrets_do_not_show_in_a_repr() -> None:
    launch = Launch.create()
    assert launch.admin_token not in repr(launch)
    assert launch.engine_token not in repr(launch)


def test_alone_the_daemon_makes_files_and_the_gateway_reads_them(config: KvrunConfig) -> None:
    daemon = instance_secrets(config, {})
    gateway = gateway_secrets(config, {})
    assert gateway.token == daemon.gateway_token
    assert daemon.claim_public_keys == (gateway.claim_key.public_key().public_bytes_raw(),)
    assert config.layout.engine_token.read_text().strip() == daemon.engine_token
    again = instance_secrets(config, {})
    assert again == daemon, "a daemon started again keeps the tokens that others have read"


def test_alone_the_gateway_says_what_is_missing(config: KvrunConfig) -> None:
    with pytest.raises(LaunchSecretsError, match="cannot be read") as caught:
        gateway_secrets(config, {})
    assert "kvrun instance" in caught.value.diagnostics()


def test_a_token_file_that_others_can_read_is_refused(config: KvrunConfig) -> None:
    instance_secrets(config, {})
    config.layout.tokens.chmod(0o644)
    with pytest.raises(LaunchSecretsError, match="may be read by other users"):
        gateway_secrets(config, {})


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"not json",
        json.dumps({"engine_token": "00", "claim_public_keys": []}).encode(),
        json.dumps({"token": "zz" * 32, "claim_seed": "00" * 32}).encode(),
        json.dumps({"token": "00" * 32, "claim_seed": "00" * 31}).encode(),
    ],
)
def test_a_malformed_descriptor_is_refused(config: KvrunConfig, payload: bytes) -> None:
    with pytest.raises(LaunchSecretsError):
        instance_secrets(config, through_descriptor(payload))
    with pytest.raises(LaunchSecretsError):
        gateway_secrets(config, through_descriptor(payload))
    with pytest.raises(LaunchSecretsError, match="KVRUN_TOKEN_FD=999"):
        instance_secrets(config, {"KVRUN_TOKEN_FD": "999"})
