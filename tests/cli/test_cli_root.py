"""What the command line says of a key root before anything depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrun.cli.probes import Level
from kvrun.cli.root_probe import check_root, warning_before_start
from kvrun.config import KvrunConfig, parse_config

ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def configured(folder: Path, keys: str) -> KvrunConfig:
    return parse_config(f"[keys]\n{keys}", {}, source=folder / "kvrun.toml")


def test_a_memory_root_is_the_strongest(tmp_path: Path) -> None:
    config = configured(tmp_path, 'root = "memory"')
    check = check_root(config)
    assert check.level is Level.OK
    assert "claim class cryptographic" in check.found
    assert warning_before_start(config) is None


def test_a_root_that_proves_no_erasure_is_warned_of(short_folder: Path) -> None:
    config = configured(short_folder, 'root = "file:/dev/shm/kvrun-nothing-is-made-here"')
    check = check_root(config)
    assert check.level is Level.WARN
    assert "tmpfs" in check.found
    assert "deletion record" in check.next_step
    assert "cannot prove" in (warning_before_start(config) or "")
    assert not Path("/dev/shm/kvrun-nothing-is-made-here").exists()


@pytest.mark.parametrize("place", ["token", "missing"])
def test_a_root_that_does_not_answer_fails(tmp_path: Path, place: str) -> None:
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("hvs.nothing")
    root = 'root = "openbao:http://127.0.0.1:9/transit/chat"'
    config = configured(tmp_path, f'{root}\nroot_secret = "file:{place}"')
    check = check_root(config)
    assert check.level is Level.FAIL
    assert check.next_step
    assert ("cannot be asked" if place == "token" else "No such file") in check.found
    assert "hvs.nothing" not in check.found
    assert not (tmp_path / "kvrun-data").exists()


def test_a_secret_in_a_descriptor_is_left_for_the_daemon(tmp_path: Path) -> None:
    root = 'root = "pkcs11:/nowhere/module.so?token=a&key=b"'
    check = check_root(configured(tmp_path, f'{root}\nroot_secret = "fd:7"'))
    assert check.level is Level.OK
    assert "not asked" in check.found
