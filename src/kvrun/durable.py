"""Names of files that outlive a power cut; ``kvrun.audit``, which imports nothing, has its own."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable (fsync(2) of the folder)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
