"""A control plane's home is served by one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvrun.api.home import HomeTakenError, home_of, only_one, require_unserved
from kvrun.cli import control_plane
from kvrun.config import parse_config


def test_a_second_control_plane_on_one_home_is_refused_and_changes_nothing(
    short_folder: Path,
) -> None:
    config = parse_config("", {}, source=short_folder / "kvrun.toml")
    home = home_of(config)
    require_unserved(home)
    assert not home.exists()
    with only_one(home):
        before = sorted(home.iterdir())
        with pytest.raises(HomeTakenError, match=rf"process {os.getpid()} serves .*already"):
            control_plane._serve(config, None)
        with pytest.raises(HomeTakenError):
            require_unserved(home)
        assert sorted(home.iterdir()) == before
    require_unserved(home)
    with only_one(home):
        pass
