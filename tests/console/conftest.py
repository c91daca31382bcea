"""A console for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from console_rig import Reader, console_world

from api.api_rig import World
from kvrun.deployments import asking
from kvrun.launch import erasing


@pytest.fixture
def world(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # The test's process is to stay one that a debugger may look at.
    monkeypatch.setattr(erasing, "harden_process", lambda: None)
    monkeypatch.setattr(asking, "harden_process", lambda: None)
    with console_world(short_folder) as opened:
        yield opened


@pytest.fixture
def owner(world: World) -> Reader:
    """The local owner."""
    return Reader(world.owner)
