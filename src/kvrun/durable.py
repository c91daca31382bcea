"""Small private files that outlive a power cut; ``kvrun.audit``, which imports nothing of kvrun but
its errors, has its own ``replace_file``."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable (fsync(2) of the folder)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private_file(path: Path, content: bytes) -> None:
    """Create ``path`` with mode 0600 and durable content; FileExistsError when it is there."""
    _write_new(path, content)
    sync_folder(path.parent)


def replace_private_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, mode 0600, in one step and durably; one writer at a time.

    Who reads meanwhile, or after a crash, sees all of it or what was there. What lies under the
    temporary name is removed first, never followed or written into. Raises OSError.
    """
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    _write_new(unfinished, content)
    unfinished.replace(path)
    sync_folder(path.parent)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
