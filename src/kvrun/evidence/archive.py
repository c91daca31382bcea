"""Reading a bundle that somebody handed over: bounded, one piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kvrun.evidence.container import Placed, content_offset, read_directory
from kvrun.evidence.errors import BundleFormatError

PIECE_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20


class Archive:
    """The files of a bundle. Use it as a context; nothing is checked but the directory."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises BundleFormatError for what is no archive of a bundle."""
        self.path = path
        try:
            self.file = path.open("rb")
        except OSError as error:
            raise BundleFormatError(f"{path} cannot be read: {error.strerror}") from None
        try:
            self.placed: list[Placed] = read_directory(self.file)
        except BaseException:
            self.file.close()
            raise
        self._by_name = {placed.entry.name: placed for placed in self.placed}

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()

    @property
    def names(self) -> list[str]:
        """The names of all files, in the directory's order."""
        return list(self._by_name)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self._by_name

    def size_of(self, name: str) -> int:
        """A file's size in bytes, as the directory says."""
        return self._by_name[name].entry.size_bytes

    def crc_of(self, name: str) -> int:
        """A file's CRC-32, as the directory says."""
        return self._by_name[name].entry.crc

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file's content. Raises BundleFormatError where it ends too early."""
        placed = self._by_name[name]
        at, left = content_offset(self.file, placed), placed.entry.size_bytes
        while left:
            self.file.seek(at)
            piece = self.file.read(min(PIECE_BYTES, left))
            if not piece:
                raise BundleFormatError(f"{name} ends too early", name=name)
            at, left = at + len(piece), left - len(piece)
            yield piece

    def read(self, name: str, most_bytes: int) -> bytes:
        """A whole file. Raises BundleFormatError where there is none, or more than that of it."""
        if not self.has(name):
            raise BundleFormatError(f"the bundle has no {name}", name=name)
        if self.size_of(name) > most_bytes:
            raise BundleFormatError(f"{name} is larger than {most_bytes} bytes", name=name)
        return b"".join(self.pieces(name))

    def lines(self, name: str) -> Iterator[bytes]:
        """A file's lines without their newlines. Raises BundleFormatError."""
        rest = b""
        for piece in self.pieces(name) if self.has(name) else ():
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
            if len(rest) > MAX_LINE_BYTES:
                raise BundleFormatError(f"{name} has a line that is too long", name=name)
        if rest:
            raise BundleFormatError(f"{name} ends within a line", name=name)
