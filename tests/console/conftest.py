"""A console for each test that wants one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_rig import Reader, console_world

from api.api_rig import World
from kvrun.deployments import asking
from kvrun.launch import erasing


@pytest.fixture(scope="module", autouse=True)
def debuggable() -> Iterator[None]:
    """The test's process stays one that a debugger may look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erasing, "harden_process", lambda: None)
        patch.setattr(asking, "harden_process", lambda: None)
        yield


@pytest.fixture
def world(short_folder: Path) -> Iterator[World]:
    with console_world(short_folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    """One for all tests of a module that leave it as it was."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    with console_world(folder) as opened:
        yield opened
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def owner(world: World) -> Reader:
    """The local owner."""
    return Reader(world.owner)
