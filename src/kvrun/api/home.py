"""The control plane's home: one folder, served by one process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file

LOCK_NAME = "serving.lock"


class HomeTakenError(KvrunError):
    """Another process serves this control plane."""

    exit_code = 3


def home_of(config: KvrunConfig) -> Path:
    """The folder of its database and of the deployments it makes."""
    return config.control_home


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Serve a home alone; it is made where it is missing. Raises HomeTakenError.

    Two that look after the same records would each undo what the other notes. Who only reads the
    database needs no lock.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = hold_file(home / LOCK_NAME, str(os.getpid()))
    except FileTakenError as error:
        raise HomeTakenError(
            f"process {error.holder or '?'} serves the control plane in {home} already",
            hint="Stop it, or give this one another control.home.",
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def require_unserved(home: Path) -> None:
    """Raise HomeTakenError where somebody serves it now; nothing is made."""
    if (home / LOCK_NAME).exists():
        with only_one(home):
            return
