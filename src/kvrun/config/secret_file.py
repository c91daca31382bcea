"""A secret that is shared with another system, in a file that the configuration names."""

import os
from pathlib import Path

from kvrun.errors import KvrunError

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096


class SecretFileError(KvrunError):
    """The file with a secret cannot be used."""

    exit_code = 2


def read_secret(path: Path, setting: str, *, at_least: int = MIN_SECRET_BYTES) -> bytes:
    """The secret in the file of ``setting``, without white space around it.

    Raises SecretFileError: it cannot be read, others may read it, or it is shorter than
    ``at_least`` bytes or too long.
    """
    try:
        with path.open("rb") as file:
            open_to_others = os.fstat(file.fileno()).st_mode & 0o077
            raw = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SecretFileError(f"{setting} {path} cannot be read: {error.strerror}") from None
    secret = raw.strip()
    if open_to_others or len(secret) < at_least or len(raw) > MAX_SECRET_BYTES:
        raise SecretFileError(
            f"{setting} {path} must hold {at_least} to {MAX_SECRET_BYTES} bytes and belong "
            "to its owner alone",
            hint=f"Run: chmod 600 {path}" if open_to_others else None,
        )
    return secret
