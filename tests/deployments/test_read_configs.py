"""A deployment's configuration is read once, and again once its file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvrun.config import ConfigError
from kvrun.deployments.configs import ReadConfigs


def write(file: Path, name: str) -> None:
    file.write_text(f'[deployment]\nname = "{name}"\n')


def test_a_file_is_read_again_once_it_changed_in_place_or_was_replaced(tmp_path: Path) -> None:
    configs, file = ReadConfigs(), tmp_path / "kvrun.toml"
    write(file, "one")
    first = configs.read(file)
    assert configs.read(file) is first
    write(file, "two")
    os.utime(file, ns=(1, 1))
    assert configs.read(file).deployment.name == "two"
    other = tmp_path / "other"
    write(other, "six")
    os.utime(other, ns=(1, 1))
    other.replace(file)
    assert configs.read(file).deployment.name == "six", "same size, same time, another file"
    file.write_text("[ no TOML")
    with pytest.raises(ConfigError):
        configs.read(file)
    file.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        configs.read(file)
