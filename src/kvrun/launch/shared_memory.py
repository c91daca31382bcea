"""Shared memory that a process leaves behind.

vLLM's processes hand each other prompts through shared memory with a name. A process that is killed
does not take the name away, and what it held would stay in memory until the machine is restarted.
"""

from pathlib import Path

_FOLDER = "/dev/shm/"  # noqa: S108 - where Linux keeps POSIX shared memory, not a temporary file
_NAMES = ("psm_", "sem.mp-")
"""As Python's multiprocessing names them."""


def segments_of(session: int) -> set[Path]:
    """The named shared memory that the processes of a session (its leader's id) have mapped."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name may hold anything, blanks and brackets too; fields follow it.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found |= _mapped(process)
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile, or is somebody else's
    return found


def remove_segments(segments: set[Path]) -> None:
    """Take their names away; the memory is freed once no process maps it."""
    for path in segments:
        path.unlink(missing_ok=True)


def _mapped(process: Path) -> set[Path]:
    paths = set()
    for line in (process / "maps").read_text().splitlines():
        name = line.partition(_FOLDER)[2]
        if name.startswith(_NAMES) and "/" not in name:
            paths.add(Path(_FOLDER + name.removesuffix(" (deleted)")))
    return paths
