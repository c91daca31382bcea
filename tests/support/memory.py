"""Looks for bytes in the whole memory of a process (as root) and in every file of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_CHUNK = 8 * 2**20


def find_in_memory(pid: int, needles: Sequence[bytes]) -> dict[bytes, set[str]]:
    """For each needle the names of the mappings that hold it ("" for anonymous memory)."""
    found: dict[bytes, set[str]] = {needle: set() for needle in needles}
    overlap = max(map(len, needles)) - 1
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, end, name in _mappings(pid):
            at, tail = start, b""
            while at < end:
                memory.seek(at)
                try:
                    data = memory.read(min(_CHUNK, end - at))
                except OSError:  # special mappings of the kernel
                    break
                if not data:
                    break
                window = tail + data
                for needle, names in found.items():
                    if needle in window:
                        names.add(name)
                tail = window[-overlap:]
                at += len(data)
    return found


def family(pid: int) -> list[int]:
    """A process and those below it."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            waiting += map(int, children.read_text().split())
    return found


def find_in_files(folder: Path, needles: Sequence[bytes]) -> set[Path]:
    """The regular files that hold any of the needles."""
    return {
        path
        for path in folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    }


def _mappings(pid: int) -> list[tuple[int, int, str]]:
    mappings = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions, _, _, _, *name = line.split(maxsplit=5)
        if "r" in permissions and "w" in permissions:
            start, end = (int(edge, 16) for edge in span.split("-"))
            mappings.append((start, end, name[0] if name else ""))
    return mappings
