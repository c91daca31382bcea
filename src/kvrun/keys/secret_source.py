"""Where a root's token or PIN comes from: a private file, an inherited descriptor, a variable.

Never the configuration's own text. A file is read again when the root refuses, so that an agent
may renew what is in it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from kvrun.keys.errors import RootError
from kvrun.keys.folder import check_private_file

MAX_BYTES = 4096


class SecretSource:
    """``place`` is ``file:PATH``, ``fd:NUMBER`` or ``env:NAME``; ``what`` names it in errors."""

    def __init__(self, place: str, environ: Mapping[str, str], *, what: str) -> None:
        self._kind, _, self._where = place.partition(":")
        self._environ = environ
        self._what = what
        self._read: str | None = None

    def read(self) -> str:
        """The secret; a descriptor is read once and remembered. Raises RootError."""
        if self._kind == "fd" and self._read is not None:
            return self._read
        try:
            raw = self._raw()
        except (OSError, ValueError) as error:
            raise RootError(f"{self._name} cannot be read: {error}") from None
        text = raw.strip(b"\r\n")
        if not text or len(raw) > MAX_BYTES or any(not 0x20 < byte < 0x7F for byte in text):
            raise RootError(
                f"{self._name} must hold 1 to {MAX_BYTES} printable ASCII characters without "
                "spaces, and nothing else"
            )
        self._read = text.decode("ascii")
        return self._read

    @property
    def _name(self) -> str:
        place = {"file": "file", "fd": "descriptor", "env": "variable"}.get(self._kind, "place")
        return f"The {self._what} in {place} {self._where}"

    def _raw(self) -> bytes:
        if self._kind == "env":
            value = self._environ.get(self._where)
            if value is None:
                raise ValueError("it is not set")
            return value.encode()
        if self._kind == "fd":
            with os.fdopen(int(self._where), "rb") as file:
                return file.read(MAX_BYTES + 1)
        path = Path(self._where)
        check_private_file(path, purpose=self._what)
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
