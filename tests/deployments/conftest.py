"""A control plane with quick stand-ins, and one with real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_rig import DAEMON, Rig


@pytest.fixture
def rig(short_folder: Path) -> Iterator[Rig]:
    """Process trees are stand-ins: only that they run counts."""
    made = Rig(short_folder)
    yield made
    made.close()


@pytest.fixture
def real(short_folder: Path) -> Iterator[Rig]:
    """Process trees hold a real instance daemon."""
    made = Rig(short_folder, DAEMON)
    yield made
    made.close()
