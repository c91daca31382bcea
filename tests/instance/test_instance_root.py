"""The daemon opens the root that is configured, and warns where it proves no erasure."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from kvrun.config import parse_config
from kvrun.keys import ClaimClass, FileRoot, MemoryRoot
from kvrun.keys.opening import open_root


def test_the_configured_root_is_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = parse_config("", {}, source=tmp_path / "kvrun.toml")
    root = open_root(config)
    assert isinstance(root, FileRoot)
    assert (tmp_path / "kvrun-data" / "root" / "root.slots").exists()
    assert bool(caplog.records) == (root.facts.claim is ClaimClass.LOGICAL)
    root.close()
    config = parse_config('[keys]\nroot = "memory"', {}, source=tmp_path / "kvrun.toml")
    root = open_root(config)
    assert isinstance(root, MemoryRoot)
    root.close()


def test_a_root_that_can_only_delete_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path("/dev/shm") / f"kvrun-test-{tmp_path.name}"
    text = f'[keys]\nroot = "file:{folder}"'
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    try:
        root = open_root(config)
        assert root.facts.claim is ClaimClass.LOGICAL
        root.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "deletion record, not in a certificate" in record.getMessage()
    assert "tmpfs" in record.getMessage()
