"""Fixtures of the tests about people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts_rig import Site, open_site


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Site]:
    """A control plane's accounts, once on SQLite and once on PostgreSQL."""
    with open_site(database_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def local_site(tmp_path: Path) -> Iterator[Site]:
    """The same on SQLite alone."""
    with open_site(f"sqlite:///{tmp_path}/state/kvrun.db", tmp_path) as opened:
        yield opened
