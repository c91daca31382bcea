"""An engine's process that crashes leaves nothing of its memory behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Commands that tests run in their own process lower its limit for good: not beside those.
pytestmark = pytest.mark.engine
MARKER = b"plain context of a user"
FILTER = "/proc/self/coredump_filter"
DUMPABLE = f"""
import contextlib, os, resource, signal
from kvrun.process import leave_no_core
with contextlib.suppress(ValueError):
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
open({FILTER!r}, "w").write("0x33")  # as a process begins
held = bytes.fromhex({MARKER.hex()!r}) * 4096  # written in hexadecimal everywhere else
"""
# A core always has the processor's registers, which hold up to a kilobyte of what was copied last.
HELD = MARKER * 64
CRASH = "\nos.kill(os.getpid(), signal.SIGSEGV)"


def cores_of(folder: Path, what_it_does: str) -> list[bytes]:
    """The files that a process leaves which does this and crashes."""
    folder.mkdir()
    command = [sys.executable, "-c", DUMPABLE + what_it_does + CRASH]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    return [path.read_bytes() for path in folder.iterdir()]


def test_a_process_that_crashes_leaves_no_core_and_where_it_must_one_without_memory(
    tmp_path: Path,
) -> None:
    assert cores_of(tmp_path / "kept", "leave_no_core()") == []
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core" and (
        hard == resource.RLIM_INFINITY or os.geteuid() == 0
    ):
        # This machine writes cores into the working folder, so the test above can fail.
        (core,) = cores_of(tmp_path / "plain", "")
        assert HELD in core
        # What takes cores in another way than by files and pipes is not stopped by the limit.
        (core,) = cores_of(tmp_path / "filtered", f"open({FILTER!r}, 'w').write('0')")
        assert HELD not in core


def test_children_inherit_it(tmp_path: Path) -> None:
    read = (
        "import resource; print(resource.getrlimit(resource.RLIMIT_CORE),"
        " open('/proc/self/coredump_filter').read().strip())"
    )
    code = (
        "import subprocess, sys; from kvrun.process import leave_no_core; leave_no_core();"
        f"subprocess.run([sys.executable, '-c', {read!r}], check=True)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert said == "(1, 1) 00000000\n"


def test_a_llama_server_of_ones_own_leaves_none_either() -> None:
    # What follows --binary is executed in the place of llama.cpp: here it tells what holds for it.
    said = subprocess.run(
        [
            sys.executable, "-m", "kvrun.engines.llama_cpp.server_process", "--binary", "/bin/cat",
            "/proc/self/limits", FILTER,
        ],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    (limit,) = [line.split() for line in said.splitlines() if line.startswith("Max core file")]
    assert limit[4:6] == ["1", "1"]
    assert said.endswith("\n00000000\n")


@pytest.mark.parametrize("limit", ["(0, 0)", "(4096, 4096)"])
def test_a_limit_that_was_lower_stays_and_memory_is_left_out_all_the_same(limit: str) -> None:
    # Root may raise it; what others may not is as if it were refused.
    code = (
        "import resource; from kvrun import process;"
        f"resource.setrlimit(resource.RLIMIT_CORE, {limit});"
        "raised = []; real = resource.setrlimit\n"
        "def refuse(*asked):\n raised.append(asked); raise ValueError('not allowed')\n"
        "resource.setrlimit = refuse; process.leave_no_core();"
        "print(resource.getrlimit(resource.RLIMIT_CORE), len(raised),"
        " open('/proc/self/coredump_filter').read().strip())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert said == f"{limit} 1 00000000\n"
