"""The bundle's file: a zip archive in which every byte follows from names, contents and one day.

Entries are stored, never compressed: nothing can inflate, a byte that was changed shows as what it
is, and the same contents give the same file with any library. ``docs/spec/evidence-bundle.md``
specifies it. Formats: PKWARE APPNOTE 6.3.10.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import BinaryIO

from kvrun.evidence.errors import BundleFormatError

MAX_ENTRIES = 1_000_000
MAX_NAME = 400
MAX_DIRECTORY_BYTES = 1 << 29
_PART = re.compile(r"[A-Za-z0-9_%=@.+-]+")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_BIG, _MANY = 0xFFFFFFFF, 0xFFFF
_PLAIN, _ZIP64 = 20, 45
_UNIX = 3 << 8
_MODE = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the archive: CRC-32 and size of its content."""

    name: str
    crc: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry and where its local header says that it is."""

    entry: Entry
    offset: int


def check_name(name: str) -> str:
    """``name`` if a file of a bundle may have it: plain parts, none of them only dots.

    Raises BundleFormatError.
    """
    parts = name.split("/")
    if len(name) > MAX_NAME or not all(
        _PART.fullmatch(part) and set(part) != {"."} for part in parts
    ):
        raise BundleFormatError(f"a bundle has no file called {name[:80]!r}", name=name[:80])
    return name


def local_header(entry: Entry, day: date) -> bytes:
    """What stands before an entry's content."""
    name = entry.name.encode("ascii")
    size, extra, version = entry.size_bytes, b"", _PLAIN
    if size >= _BIG:
        extra, version = struct.pack("<HHQQ", 1, 16, size, size), _ZIP64
        size = _BIG
    head = _LOCAL.pack(
        b"PK\3\4", version, 0, 0, 0, _dos(day), entry.crc, size, size, len(name), len(extra)
    )
    return head + name + extra


def directory(entries: Iterable[Entry], day: date) -> Iterator[bytes]:
    """The directory and the end of the archive, one piece an entry and one for the end."""
    offset = count = size = 0
    for entry in entries:
        piece = _central(Placed(entry, offset), day)
        offset += len(local_header(entry, day)) + entry.size_bytes
        count, size = count + 1, size + len(piece)
        yield piece
    end = b""
    if count >= _MANY or size >= _BIG or offset >= _BIG:
        end += _END64.pack(b"PK\6\6", 44, _UNIX | _ZIP64, _ZIP64, 0, 0, count, count, size, offset)
        end += _LOCATOR.pack(b"PK\6\7", 0, offset + size, 1)
    few = min(count, _MANY)
    yield end + _END.pack(b"PK\5\6", 0, 0, few, few, min(size, _BIG), min(offset, _BIG), 0)


def read_directory(file: BinaryIO) -> list[Placed]:
    """The entries of an archive, in the order of its directory.

    Only what this format can have is read: entries that are stored, with plain names, each name
    once. Raises BundleFormatError, also for sizes that do not fit into the file.
    """
    end = file.seek(0, 2)
    if end < _END.size:
        raise BundleFormatError("it is no zip archive: it is too short")
    count, size, start = _read_end(file, end)
    if count > MAX_ENTRIES or size > MAX_DIRECTORY_BYTES or start + size > end:
        raise BundleFormatError("the archive's end names a directory that cannot be")
    file.seek(start)
    data = file.read(size)
    found: list[Placed] = []
    at, contents_bytes, names = 0, 0, set()
    while at < len(data):
        if len(found) >= count:
            raise BundleFormatError("the directory has more entries than the archive's end says")
        before = found[-1].entry.name if found else ""
        placed, at = _read_central(data, at, before)
        folded = placed.entry.name.lower()
        if folded in names:
            raise BundleFormatError(
                f"the archive has two files called {placed.entry.name}", name=placed.entry.name
            )
        if placed.offset + placed.entry.size_bytes > start:
            raise BundleFormatError(
                f"{placed.entry.name} does not fit into the archive", name=placed.entry.name
            )
        contents_bytes += placed.entry.size_bytes
        if contents_bytes > start:
            raise BundleFormatError(
                f"{placed.entry.name} lies over other files", name=placed.entry.name
            )
        names.add(folded)
        found.append(placed)
    if len(found) != count:
        raise BundleFormatError("the directory has fewer entries than the archive's end says")
    return found


def content_offset(file: BinaryIO, placed: Placed) -> int:
    """Where an entry's content begins, by its own local header."""
    file.seek(placed.offset)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or not head.startswith(b"PK\3\4"):
        return placed.offset + _LOCAL.size + len(placed.entry.name)
    *_, name, extra = _LOCAL.unpack(head)
    return placed.offset + _LOCAL.size + int(name) + int(extra)


def first_difference(file: BinaryIO, found: list[Placed], day: date) -> str | None:
    """Which entry's place in the archive is not the format's; "" for the end; None where all are.

    Contents are not looked at.
    """
    file_bytes, at = file.seek(0, 2), 0
    names = [placed.entry.name for placed in found]
    if names != sorted(names):
        return next(after for before, after in pairwise(names) if before > after)
    for placed in found:
        expected = local_header(placed.entry, day)
        file.seek(at)
        if placed.offset != at or file.read(len(expected)) != expected:
            return placed.entry.name
        at += len(expected) + placed.entry.size_bytes
    for name, piece in zip(
        [*names, ""], directory((placed.entry for placed in found), day), strict=True
    ):
        file.seek(at)
        if file.read(len(piece)) != piece:
            return name
        at += len(piece)
    return None if at == file_bytes else ""


def _central(placed: Placed, day: date) -> bytes:
    entry, extra = placed.entry, b""
    name, size, offset, version = (
        entry.name.encode("ascii"),
        entry.size_bytes,
        placed.offset,
        _PLAIN,
    )
    if size >= _BIG:
        extra += struct.pack("<QQ", size, size)
        size = _BIG
    if offset >= _BIG:
        extra += struct.pack("<Q", offset)
        offset = _BIG
    if extra:
        extra, version = struct.pack("<HH", 1, len(extra)) + extra, _ZIP64
    head = _CENTRAL.pack(
        b"PK\1\2",
        _UNIX | version,
        version,
        0,
        0,
        0,
        _dos(day),
        entry.crc,
        size,
        size,
        len(name),
        len(extra),
        0,
        0,
        0,
        _MODE,
        offset,
    )
    return head + name + extra


def _read_end(file: BinaryIO, end: int) -> tuple[int, int, int]:
    """Number of entries, size and place of the directory."""
    file.seek(end - _END.size)
    fields = _END.unpack(file.read(_END.size))
    if fields[0] != b"PK\5\6" or fields[7]:
        raise BundleFormatError("it is no zip archive, or something follows its end")
    count, size, start = fields[4], fields[5], fields[6]
    if _MANY in (count,) or _BIG in (size, start):
        at = end - _END.size - _LOCATOR.size
        if at < _END64.size:
            raise BundleFormatError("the archive's end is not whole")
        file.seek(at)
        mark, _, place, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
        if mark != b"PK\6\7" or place + _END64.size > end:
            raise BundleFormatError("the archive's end is not whole")
        file.seek(place)
        big = _END64.unpack(file.read(_END64.size))
        if big[0] != b"PK\6\6":
            raise BundleFormatError("the archive's end is not whole")
        count, size, start = big[7], big[8], big[9]
    return count, size, start


def _read_central(data: bytes, at: int, before: str) -> tuple[Placed, int]:
    after = f" after {before}" if before else ""
    try:
        fields = _CENTRAL.unpack_from(data, at)
        mark, method, crc, packed, size = fields[0], fields[4], fields[7], fields[8], fields[9]
        name_end = at + _CENTRAL.size + fields[10]
        end = name_end + fields[11] + fields[12]
        name = data[at + _CENTRAL.size : name_end].decode("ascii")
        if mark != b"PK\1\2" or end > len(data):
            raise ValueError
    except (struct.error, ValueError):
        raise BundleFormatError(f"the directory is damaged{after}", name=before) from None
    check_name(name)
    if method or fields[3] & 1:
        raise BundleFormatError(
            f"{name} is compressed or encrypted; files of a bundle are neither", name=name
        )
    offset, extra = fields[16], data[name_end : name_end + fields[11]]
    try:
        numbers = iter(_big_numbers(extra))
        size = next(numbers) if size == _BIG else size
        packed = next(numbers) if packed == _BIG else packed
        offset = next(numbers) if offset == _BIG else offset
    except StopIteration:
        raise BundleFormatError(f"the size of {name} is not whole", name=name) from None
    if packed != size:
        raise BundleFormatError(f"{name} has two sizes", name=name)
    return Placed(Entry(name, crc, size), offset), end


def _big_numbers(extra: bytes) -> list[int]:
    """The numbers of the ZIP64 field among the extra fields."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            body = extra[at + 4 : at + 4 + length]
            return [number for (number,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8])]
        at += 4 + length
    return []


def _dos(day: date) -> int:
    return (day.year - 1980) << 9 | day.month << 5 | day.day
