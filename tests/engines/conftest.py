"""Engines and daemons shared by a module's tests: an engine takes seconds to start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrun.models.folders import cache_folder
from kvrun.models.tiny import TinyShape, ensure_tiny_model
from support.daemon import PATIENT, Daemon

collect_ignore = []
if importlib.util.find_spec("sglang") is None:
    # They run in the environment that scripts/sglang-venv.sh makes.
    collect_ignore += ["test_sglang_cache.py", "test_sglang_checks.py", "test_sglang_engine.py"]
if "KVRUN_LLAMA_SERVER" not in os.environ:
    # scripts/llama-server.sh builds one, for a quarter of an hour.
    collect_ignore += ["test_llama_stock.py"]


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """A seeded Llama of one KV cache group."""
    return ensure_tiny_model(cache_folder())


@pytest.fixture(scope="session")
def tiny_gemma() -> Path:
    """A seeded Gemma 3 with sliding and full attention, so several KV cache groups."""
    return ensure_tiny_model(cache_folder(), TinyShape(family="gemma3"))


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A private folder with a short path for one module."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    """A running daemon for one module."""
    running = Daemon(module_folder, settings=PATIENT)
    running.start()
    yield running
    running.stop()
