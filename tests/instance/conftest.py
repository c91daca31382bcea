"""A daemon and an engine played by hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.byhand import HandEngine
from support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A running daemon for one module."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder, settings='[audit]\nmode = "require"\n')
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[HandEngine]:
    """An engine that is connected to it."""
    with HandEngine(daemon.socket, daemon.engine_token) as playing:
        yield playing
