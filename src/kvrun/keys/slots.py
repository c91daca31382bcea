"""The slot file: fixed-size records that are overwritten in place and survive torn writes.

One page of file header, then slots of two halves, of 512 bytes each where nothing else is said.
A write goes to the half that is not current, so a torn write leaves the current one. Of two valid
halves the higher sequence wins. Nothing is synced by a write: callers batch, then call ``sync``
once. Byte-exact format: ``docs/spec/key-slots.md``.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from kvrun.durable import sync_folder
from kvrun.keys.errors import ReadBackError, SlotFileError
from kvrun.keys.folder import check_private_file

HALF_BYTES = 512
PAGE_BYTES = 4096
VERSION = 1


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What a half holds: ``kind`` (1..65535), ``sequence`` and a body, 52 bytes less than it."""

    kind: int
    sequence: int
    body: memoryview


class ReadBack(Enum):
    """How erased slots were read again."""

    DIRECT = "direct"  # O_DIRECT: from the device, past the page cache
    CACHED = "cached"  # the filesystem refused O_DIRECT


class SlotIO(Protocol):
    """The file operations below a slot file; tests put a lossy disk here."""

    def pread_into(self, descriptor: int, target: memoryview, offset: int) -> int:
        """Read into ``target``; the number of bytes that came."""

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of ``data``. Raises OSError."""

    def sync(self, descriptor: int) -> None:
        """Make what was written durable (fdatasync). Raises OSError."""


class OsSlotIO:
    """The operating system's calls."""

    def pread_into(self, descriptor: int, target: memoryview, offset: int) -> int:
        """preadv(2)."""
        return os.preadv(descriptor, [target], offset)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """pwrite(2); a short write is an OSError."""
        if os.pwrite(descriptor, data, offset) != len(data):
            raise OSError("short write to a slot file")

    def sync(self, descriptor: int) -> None:
        """fdatasync(2)."""
        os.fdatasync(descriptor)


OS_IO = OsSlotIO()


class SlotFile:
    """A file of slots, opened by one owner at a time (the caller holds the folder's lock).

    ``half_bytes`` is a multiple of 512. ``scratch``, as long as a half, is where halves are built
    and read; give it locked memory when bodies hold a key in the clear. A record's body is a view
    into it, valid until the next call. Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        grow_by: int = 256,
        half_bytes: int = HALF_BYTES,
        scratch: memoryview | None = None,
        io: SlotIO = OS_IO,
    ) -> None:
        self.path = path
        self._io = io
        self._grow_by = grow_by
        self._half_bytes, self._slot_bytes = half_bytes, 2 * half_bytes
        self._checked = half_bytes - _DIGEST_BYTES
        self._zeros = bytes(half_bytes)
        # Whole stretches are read at once, except where bodies must stay in the scratch memory.
        self._scan_slots = 1 if scratch is not None else max(2, _SCAN_BYTES // self._slot_bytes)
        self._scratch = memoryview(bytearray(half_bytes)) if scratch is None else scratch
        self._current = bytearray()  # per slot: 0 = empty, 1 = half A, 2 = half B
        self._sequence = 0
        self._file_id = b""
        self._free: list[int] = []
        existed = path.exists()
        if existed:
            check_private_file(path, purpose="key slot")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._read_header()
            self._map_free_slots()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """Number of slots in the file, free ones included."""
        return len(self._current)

    @property
    def sequence(self) -> int:
        """The highest sequence of any record."""
        return self._sequence

    @property
    def file_id(self) -> bytes:
        """16 random bytes that tell this file from another one in its place; copies share them."""
        return self._file_id

    def read(self, slot: int) -> SlotRecord | None:
        """The current record of a slot, or None when it is free."""
        current = self._current[slot]
        if not current:
            return None
        record = self._read_half(slot, current - 1)
        if record is None:
            raise SlotFileError(f"Slot {slot} of {self.path} does not check out any more")
        return record

    def records(self) -> Iterator[tuple[int, SlotRecord]]:
        """Every occupied slot in order. The caller must not write meanwhile.

        Which half counts was settled, checksums included, when the file was opened.
        """
        if self._scan_slots == 1:
            for slot in range(self.count):
                record = self.read(slot)
                if record is not None:
                    yield slot, record
            return
        for first in range(0, self.count, self._scan_slots):
            for slot, kind, sequence, body in self._occupied(first, self._scan_slots):
                yield slot, SlotRecord(kind, sequence, body)

    def take_free(self) -> int:
        """A free slot, growing the file when there is none. It stays free until written."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def give_back(self, slots: Sequence[int]) -> None:
        """Slots that ``take_free`` gave and nobody wrote."""
        self._free.extend(reversed(slots))

    def leap(self, sequence: int) -> None:
        """Have every later record come after all that a copy of this file can hold, one that went
        on from ``sequence`` by 2^32 records included."""
        self._sequence = max(self._sequence, sequence) + _LEAP

    def reserve(self, slot: int) -> None:
        """Have the file grow until it has this slot."""
        while slot >= self.count:
            self._grow()

    def write(self, slot: int, kind: int, body: bytes | memoryview) -> None:
        """Put a record into the half that is not current and make that one current. No sync."""
        most = self._checked - _HALF.size
        if not 0 < len(body) <= most or not 0 < kind < 65536:
            raise SlotFileError(
                f"A slot holds 1 to {most} bytes of a kind from 1 to 65535, "
                f"not {len(body)} bytes of kind {kind}"
            )
        half = 1 if self._current[slot] == 1 else 0
        self._sequence += 1
        target, end, checked = self._scratch, _HALF.size + len(body), self._checked
        _HALF.pack_into(target, 0, _MAGIC, VERSION, kind, self._sequence, len(body), 0)
        target[_HALF.size : end] = body
        target[end:checked] = self._zeros[: checked - end]
        target[checked : self._half_bytes] = self._checksum(target[:checked], slot, half)
        self._io.pwrite(self._descriptor, target[: self._half_bytes], self._offset(slot, half))
        self._current[slot] = half + 1

    def zero_stale_halves(self, slots: Sequence[int]) -> ReadBack:
        """Zero the half beside the current one, sync, and read back that it is zero."""
        places = [self._offset(slot, 2 - self._current[slot]) for slot in slots]
        for place in places:
            self._io.pwrite(self._descriptor, self._zeros, place)
        self.sync()
        return self._verify_zero(places)

    def erase(self, slots: Sequence[int]) -> ReadBack:
        """Zero both halves of the slots, sync, read back, and make the slots free again."""
        places = [self._offset(slot, half) for slot in slots for half in (0, 1)]
        for place in places:
            self._io.pwrite(self._descriptor, self._zeros, place)
        self.sync()
        way = self._verify_zero(places)
        for slot in slots:
            self._current[slot] = 0
            self._free.append(slot)
        return way

    def torn(self) -> list[int]:
        """Free slots that are not all zeros (a write that was cut short, or damage)."""
        return [
            slot for slot, current in enumerate(self._current) if not current and self._dirty(slot)
        ]

    def scrub_torn(self, torn: list[int] | None = None) -> list[int]:
        """Zero torn slots, these if somebody found them already; which they were."""
        torn = self.torn() if torn is None else torn
        if torn:
            self._free = [slot for slot in self._free if slot not in set(torn)]
            self.erase(torn)
        return torn

    def sync(self) -> None:
        """Make all writes so far durable (fdatasync)."""
        self._io.sync(self._descriptor)

    def close(self) -> None:
        """Close the file; calling it again does nothing. Unsynced writes stay with the system."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_header(self) -> None:
        size = os.fstat(self._descriptor).st_size
        head = bytearray(PAGE_BYTES)
        got = self._io.pread_into(self._descriptor, memoryview(head), 0)
        if size <= PAGE_BYTES and _is_unfinished(head):
            # New, or its creation was cut short: nothing can have been stored.
            fields = _FILE.pack(_FILE_MAGIC, VERSION, self._half_bytes, 0, os.urandom(16))
            head[:] = fields + hashlib.sha256(fields).digest() + bytes(PAGE_BYTES - _FILE.size - 32)
            self._io.pwrite(self._descriptor, bytes(head), 0)
            self.sync()
            sync_folder(self.path.parent)
        elif got < PAGE_BYTES:
            raise SlotFileError(f"{self.path} is {size} bytes long: too short for a slot file")
        magic, version, half_bytes, _, self._file_id = _FILE.unpack_from(head)
        if magic != _FILE_MAGIC:
            raise SlotFileError(f"{self.path} is not a slot file")
        if head[_FILE.size : _FILE.size + 32] != _digest_of(head):
            raise SlotFileError(f"The header of {self.path} is damaged")
        if (version, half_bytes) != (VERSION, self._half_bytes):
            raise SlotFileError(
                f"{self.path} has slot format {version} with halves of {half_bytes} bytes; "
                f"this version reads format {VERSION} with {self._half_bytes}"
            )

    def _map_free_slots(self) -> None:
        size = os.fstat(self._descriptor).st_size
        self._current = bytearray(max(0, size - PAGE_BYTES) // self._slot_bytes)
        best = 0
        for slot, half, record in self._halves():
            if half == 0:
                best = 0
            if record is not None and record.sequence > best:
                best = record.sequence
                self._current[slot] = half + 1
                self._sequence = max(self._sequence, best)
        # Low slots first: the list is used from its end.
        self._free = [slot for slot in reversed(range(self.count)) if not self._current[slot]]

    def _halves(self) -> Iterator[tuple[int, int, SlotRecord | None]]:
        if self._scan_slots == 1:
            for slot in range(self.count):
                for half in (0, 1):
                    yield slot, half, self._read_half(slot, half)
            return
        stretch = memoryview(bytearray(self._scan_slots * self._slot_bytes))
        for start in range(0, self.count, self._scan_slots):
            got = self._io.pread_into(self._descriptor, stretch, self._offset(start, 0))
            for slot in range(start, min(start + self._scan_slots, self.count)):
                for half in (0, 1):
                    at = (slot - start) * self._slot_bytes + half * self._half_bytes
                    whole = at + self._half_bytes <= got
                    raw = stretch[at : at + self._half_bytes]
                    yield slot, half, self._parse(raw, slot, half) if whole else None

    def _occupied(self, first: int, count: int) -> Iterator[tuple[int, int, int, memoryview]]:
        count = min(count, self.count - first)
        content = memoryview(bytearray(count * self._slot_bytes))
        self._io.pread_into(self._descriptor, content, self._offset(first, 0))
        for number in range(count):
            current = self._current[first + number]
            if current:
                at = number * self._slot_bytes + (current - 1) * self._half_bytes
                _, _, kind, sequence, length, _ = _HALF.unpack_from(content, at)
                start = at + _HALF.size
                body = content[start : min(start + length, at + self._checked)]
                yield first + number, kind, sequence, body

    def _read_half(self, slot: int, half: int) -> SlotRecord | None:
        target = self._scratch[: self._half_bytes]
        if self._io.pread_into(self._descriptor, target, self._offset(slot, half)) != len(target):
            return None
        return self._parse(target, slot, half)

    def _parse(self, raw: memoryview, slot: int, half: int) -> SlotRecord | None:
        magic, version, kind, sequence, length, zero = _HALF.unpack_from(raw)
        if magic != _MAGIC or version != VERSION or zero:
            return None
        if not 0 < length <= self._checked - _HALF.size:
            return None
        if raw[self._checked :] != self._checksum(raw[: self._checked], slot, half):
            return None
        return SlotRecord(kind, sequence, raw[_HALF.size : _HALF.size + length])

    def _dirty(self, slot: int) -> bool:
        content = bytearray(self._slot_bytes)
        self._io.pread_into(self._descriptor, memoryview(content), self._offset(slot, 0))
        return any(content)

    def _checksum(self, checked: memoryview, slot: int, half: int) -> bytes:
        # Bound to file and place, so that a half copied elsewhere is as invalid as a torn one.
        state = hashlib.sha256(self._file_id + _PLACE.pack(slot, half))
        state.update(checked)
        return state.digest()

    def _grow(self) -> None:
        # Real zeros, not a hole: later overwrites then touch no metadata and stay in place.
        start = self.count
        end = self._offset(start, 0)
        self._io.pwrite(self._descriptor, bytes(self._grow_by * self._slot_bytes), end)
        self.sync()
        self._current.extend(bytes(self._grow_by))
        self._free.extend(reversed(range(start, self.count)))

    def _offset(self, slot: int, half: int) -> int:
        return PAGE_BYTES + slot * self._slot_bytes + half * self._half_bytes

    def _verify_zero(self, places: Sequence[int]) -> ReadBack:
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place in sorted(places):
            for page in range(
                place // PAGE_BYTES, (place + self._half_bytes - 1) // PAGE_BYTES + 1
            ):
                first = page * PAGE_BYTES
                end = min(place + self._half_bytes - first, PAGE_BYTES)
                wanted.setdefault(page, []).append((max(place - first, 0), end))
        way = ReadBack.DIRECT
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            descriptor, way = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC), ReadBack.CACHED
        buffer = mmap.mmap(-1, PAGE_BYTES)  # O_DIRECT wants aligned memory
        try:
            for page, spans in wanted.items():
                os.preadv(descriptor, [buffer], page * PAGE_BYTES)
                for start, end in spans:
                    if buffer[start:end] != self._zeros[: end - start]:
                        raise ReadBackError(
                            f"{self.path} still holds data at byte {page * PAGE_BYTES + start} "
                            "after it was overwritten with zeros"
                        )
        finally:
            buffer.close()
            os.close(descriptor)
        return way


_FILE_MAGIC = b"KVRUNSLT"
_FILE = struct.Struct(">8sHHI16s")
_MAGIC = b"KSL1"
_HALF = struct.Struct(">4sHHQHH")
_PLACE = struct.Struct(">IB")
_DIGEST_BYTES = 32
_SCAN_BYTES = 1 << 18
_LEAP = 1 << 32


def _is_unfinished(head: bytearray) -> bool:
    start = bytes(head[: len(_FILE_MAGIC)])
    torn = start == _FILE_MAGIC[: len(start.rstrip(b"\0"))].ljust(len(start), b"\0")
    return torn and head[_FILE.size : _FILE.size + 32] != _digest_of(head)


def _digest_of(head: bytearray) -> bytes:
    return hashlib.sha256(head[: _FILE.size]).digest()
