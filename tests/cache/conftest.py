"""Fixtures of the cache tests."""

from pathlib import Path

import pytest
from cachebox import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path / "cache")


@pytest.fixture
def stateless() -> Box:
    return Box(None)
