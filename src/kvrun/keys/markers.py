"""The files in a folder that tell people and backup programs to leave it out of backups."""

from pathlib import Path

from kvrun.durable import write_private_file


def mark_do_not_back_up(folder: Path) -> None:
    """Put the two markers into ``folder`` where they are missing."""
    for name, text in (("DO-NOT-BACK-UP.txt", _MARKER), ("CACHEDIR.TAG", _CACHE_TAG)):
        if not (folder / name).exists():
            write_private_file(folder / name, text.encode())


_MARKER = """\
This folder holds the root of kvrun's keys. Do not back it up and do not copy it.

Erasure works by destroying keys in this folder. A restored copy brings them back,
and with them everything that was erased since the copy was made.
Without this folder the sealed cache cannot be read: it is recomputed, nothing else is lost.
"""
_CACHE_TAG = """\
Signature: 8a477f597d28d172789f06886806bc55
# Tells backup programs that follow the Cache Directory Tagging Specification to skip this folder.
"""
