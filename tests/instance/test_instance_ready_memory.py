"""The daemon has memory for the blocks that come next, before they come."""

import tempfile
from pathlib import Path

from support.client import eventually
from support.daemon import Daemon

QUARTER = 16 * 2**20  # of the 64 MiB that the tests' daemons have


def slab_bytes(pid: int) -> int:
    """What the system gave a process for memory that is not dumped and may have large pages."""
    total = size = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Rss:"):
            size = 1024 * int(line.split()[1])
        elif line.startswith("VmFlags:") and {"dd", "hg"} <= set(line.split()):
            total += size
    return total


def test_a_quarter_of_the_memory_tier_is_ready_soon_after_the_start() -> None:
    with tempfile.TemporaryDirectory(prefix="kv-", dir="/tmp") as folder:
        daemon = Daemon(Path(folder))
        daemon.start()
        try:
            eventually(lambda: slab_bytes(daemon.pid) >= QUARTER, "a quarter of the memory tier")
            assert slab_bytes(daemon.pid) <= QUARTER + 2 * 2**20, "and no more than that"
        finally:
            daemon.stop()
