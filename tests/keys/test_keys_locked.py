"""Memory for keys is zeroed, locked where the limits allow, and says what it got."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import pytest

from kvrun.keys import LockedBuffer, Protection, SecretArena
from kvrun.keys.errors import KeysError


@pytest.mark.parametrize("prefer_secret", [True, False])
def test_a_closed_buffer_reads_as_zeros_through_a_slice_that_is_still_held(
    prefer_secret: bool,
) -> None:
    buffer = LockedBuffer(100, prefer_secret=prefer_secret)
    held = buffer.view[10:20]
    held[:] = b"0123456789"
    buffer.close()
    assert bytes(held) == bytes(10)
    buffer.close()


def test_without_memfd_secret_the_pages_are_locked_and_left_out_of_core_dumps() -> None:
    with LockedBuffer(mmap.PAGESIZE * 3, prefer_secret=False) as buffer:
        assert buffer.protection is Protection.LOCKED
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer.view))
        flags = _flags_of(address)
    assert {"lo", "dd", "wf"} <= flags  # locked, don't dump, wipe on fork


def test_an_arena_puts_thousands_of_keys_into_few_pages() -> None:
    arena = SecretArena(32)
    secrets = [arena.take() for _ in range(5000)]
    for number, secret in enumerate(secrets):
        secret.view[:] = number.to_bytes(32, "big")
    assert [int.from_bytes(secret.view, "big") for secret in secrets] == list(range(5000))
    assert sum(chunk._pages for chunk in arena._chunks) <= 5000 * 32 + 16384
    arena.close()


def test_a_wiped_secret_is_zero_and_its_place_is_used_again() -> None:
    arena = SecretArena(32)
    first = arena.take()
    first.view[:] = b"k" * 32
    other_view = first.view[:]
    first.wipe()
    first.wipe()
    assert first.wiped
    assert bytes(other_view) == bytes(32)
    assert arena.in_use == 0
    again = arena.take()
    again.view[:] = b"n" * 32
    assert bytes(other_view) == b"n" * 32
    arena.close()
    with pytest.raises(KeysError, match="closed"):
        arena.take()


_SMALL_LIMIT = """
import os, resource, sys
from kvrun.keys import LockedBuffer, MemoryLockError, SecretArena
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may lock without limit
print(LockedBuffer(4096).protection.value, SecretArena().protection.value)
try:
    LockedBuffer(4096, strict=True)
except MemoryLockError as error:
    print(error.message)
"""


def test_a_memlock_limit_that_is_too_small_is_said_or_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_LIMIT], capture_output=True, text=True, check=True
    )
    protections, refusal = done.stdout.splitlines()
    assert protections == "plain plain"
    assert "RLIMIT_MEMLOCK is 0 bytes" in refusal


_FORK = """
import os
from kvrun.keys import LockedBuffer
buffer = LockedBuffer(64, prefer_secret=False)
buffer.view[:] = b"s" * 64
child = os.fork()
if child == 0:
    os._exit(0 if bytes(buffer.view) == bytes(64) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bytes(buffer.view) == b"s" * 64)
"""


def test_a_forked_child_finds_no_key() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


_HARDEN = """
import resource
from kvrun.process import harden_process
report = harden_process()
print(report.complete, resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_a_hardened_process_can_dump_no_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HARDEN], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True (0, 0)"


def _flags_of(address: int) -> set[str]:
    inside = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            head = line.split(" ", 1)[0]
            if "-" in head and not head.endswith(":"):
                start, end = (int(part, 16) for part in head.split("-"))
                inside = start <= address < end
            elif inside and line.startswith("VmFlags:"):
                return set(line.split()[1:])
    raise AssertionError("the buffer is in no mapping")
