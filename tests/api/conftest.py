"""A control plane for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_rig import World, open_world

from kvrun.launch import erasing


@pytest.fixture
def world(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # The test's process is to stay one that a debugger may look at.
    monkeypatch.setattr(erasing, "harden_process", lambda: None)
    with open_world(short_folder) as opened:
        opened.workspace("acme")
        yield opened
