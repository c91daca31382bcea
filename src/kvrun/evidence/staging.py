"""The folder of a bundle that is being made: finished parts stay, so that it can be resumed.

``files/`` is what goes into the bundle, ``rows/`` are pieces of lists, and ``parts/`` notes of each
finished part what it made. A part that was cut short is made again from its beginning.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from kvrun.durable import replace_private_file
from kvrun.evidence.container import check_name
from kvrun.evidence.errors import EvidenceBusyError, EvidenceError
from kvrun.evidence.populations import Population
from kvrun.filelock import FileTakenError, hold_file

T = TypeVar("T")


class StagedFile(msgspec.Struct, frozen=True):
    """A file that is ready to go into the bundle."""

    name: str
    size_bytes: int
    sha256: str
    crc: int


class Part:
    """What one step makes: files of the bundle and rows of its lists."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.files: list[StagedFile] = []
        self._rows: dict[Population, BinaryIO] = {}

    def add(self, name: str, data: bytes | Iterable[bytes]) -> StagedFile:
        """A file of the bundle, from its bytes or from pieces of them."""
        path = self._folder / "files" / check_name(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest, crc, size = sha256(), 0, 0
        with _create(path) as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                digest.update(piece)
                crc, size = zlib.crc32(piece, crc), size + len(piece)
                file.write(piece)
        staged = StagedFile(name, size, digest.hexdigest(), crc)
        self.files.append(staged)
        return staged

    def row(self, population: Population, line: str) -> None:
        """A line of a list."""
        file = self._rows.get(population)
        if file is None:
            path = self._folder / "rows" / population.value / self._name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._rows[population] = _create(path)
        file.write(line.encode())

    def close(self) -> None:
        """Write what is not yet written."""
        for file in self._rows.values():
            file.close()


class Staging:
    """The folder of one bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the one who makes this bundle. Raises EvidenceBusyError or EvidenceError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = hold_file(self.folder / "lock", str(os.getpid()))
        except FileTakenError as error:
            raise EvidenceBusyError(
                f"process {error.holder or '?'} makes this evidence in {self.folder} now"
            ) from None
        except OSError as error:
            raise EvidenceError(f"{self.folder} cannot be used: {error.strerror}") from None
        try:
            yield
        finally:
            os.close(held)

    def part(self, name: str, kind: type[T], make: Callable[[Part], T], *, keep: bool) -> T:
        """What ``make`` says of the part that it makes; what it said when it was made before.

        A part is only taken from before where ``keep`` was set then. Raises what ``make`` raises.
        """
        path = self.folder / "parts" / f"{name}.json"
        known = self._known(path)
        if known is not None and known.keep:
            return msgspec.json.decode(known.facts, type=kind)
        for rows in (self.folder / "rows").glob(f"*/{name}"):
            rows.unlink()
        part = Part(self.folder, name)
        try:
            facts = make(part)
        finally:
            part.close()
        noted = _Noted(files=part.files, facts=msgspec.Raw(msgspec.json.encode(facts)), keep=keep)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_private_file(path, msgspec.json.encode(noted))
        return facts

    def files(self) -> list[StagedFile]:
        """The files of all parts, by name. Raises EvidenceError where two have one name."""
        found: dict[str, StagedFile] = {}
        for path in sorted((self.folder / "parts").glob("*.json")):
            known = self._known(path)
            for file in known.files if known else ():
                if found.setdefault(file.name, file) is not file:
                    raise EvidenceError(f"two parts of the bundle make {file.name}")
        return [found[name] for name in sorted(found)]

    def rows(self, population: Population) -> Iterator[bytes]:
        """A list's lines, in the order of the parts that made them."""
        folder = self.folder / "rows" / population.value
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            yield from self.pieces_of(path)

    def content(self, name: str) -> Iterator[bytes]:
        """A file's bytes."""
        yield from self.pieces_of(self.folder / "files" / name)

    def clear(self) -> None:
        """Nothing of what is there is wanted."""
        for name in ("parts", "files", "rows"):
            if (self.folder / name).exists():
                shutil.rmtree(self.folder / name)

    def remove(self) -> None:
        """The bundle is made."""
        shutil.rmtree(self.folder)

    @staticmethod
    def pieces_of(path: Path) -> Iterator[bytes]:
        """A file in pieces."""
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece

    def _known(self, path: Path) -> _Noted | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Noted)
        except (OSError, msgspec.MsgspecError):
            return None


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    files: list[StagedFile]
    facts: msgspec.Raw
    keep: bool


def _create(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")
