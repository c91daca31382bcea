"""Shared fixtures: folders short enough for sockets, and what this machine can run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from support import which_ran
from support.object_stores import any_store, moto_store, seaweedfs  # noqa: F401  fixtures
from support.postgres import database_url, postgresql_cluster  # noqa: F401  fixtures

# What is proven must not depend on how busy the machine is.
settings.register_profile("kvrun", deadline=None)
settings.load_profile("kvrun")


def pytest_configure(config: pytest.Config) -> None:
    """Say at the end which real engines ran; with PINNED set, keep each worker to one core.

    Engines compute on every core they may use: two of them on the same ones would wait for each
    other's threads.
    """
    config.pluginmanager.register(which_ran, "kvrun-which-ran")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and os.environ.get("PINNED"):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(worker.removeprefix("gw")) % len(cpus)]})


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for a Unix socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Root-only claims are skipped by name for other users; CI runs as root and skips none."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))
