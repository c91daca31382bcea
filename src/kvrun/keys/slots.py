"""The slot file: fixed-size records that are overwritten in place and survive torn writes.

One page of file header, then slots of two 512-byte halves. A write goes to the half that is not
current, so a torn write leaves the current one. Of two valid halves the higher sequence wins.
Nothing is synced by a write: callers batch, then call ``sync`` once. Byte-exact format:
``docs/spec/key-slots.md``.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from kvrun.durable import sync_folder
from kvrun.keys.errors import ReadBackError, SlotFileError
from kvrun.keys.folder import check_private_file

HALF_BYTES = 512
SLOT_BYTES = 2 * HALF_BYTES
PAGE_BYTES = 4096
BODY_BYTES = 460
VERSION = 1


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What a half holds: ``kind`` (1..65535), ``sequence`` and up to 460 bytes of body."""

    kind: int
    sequence: int
    body: memoryview


Renew = Callable[[int, int, memoryview], int]
"""Given slot, kind and body, puts another body into ``renewed``; its length, or 0: it stays."""


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

    ``scratch`` (512 bytes) is where halves are built and read; give it locked memory when bodies
    hold a key in the clear. A record's body is a view into it, valid until the next call.
    The first slot of every ``group_slots`` is for the owner's use; ``take_free`` never gives it.
    Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        grow_by: int = 256,
        group_slots: int = 0,
        scratch: memoryview | None = None,
        io: SlotIO = OS_IO,
    ) -> None:
        self.path = path
        self._io = io
        self._grow_by = grow_by
        self._group_slots = group_slots
        # Whole stretches are read at once, except where bodies must stay in the scratch memory.
        self._scan_slots = 1 if scratch is not None else _SCAN_SLOTS
        self._scratch = memoryview(bytearray(HALF_BYTES)) if scratch is None else scratch
        self._current = bytearray()  # per slot: 0 = empty, 1 = half A, 2 = half B
        self._sequence = 0
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

    def read(self, slot: int) -> SlotRecord | None:
        """The current record of a slot, or None when it is free."""
        current = self._current[slot]
        if not current:
            return None
        record = self._read_half(slot, current - 1)
        if record is None:
            raise SlotFileError(f"Slot {slot} of {self.path} does not check out any more")
        return record

    def read_earlier(self, slot: int) -> SlotRecord | None:
        """The record before the current one, where its half still holds it."""
        current = self._current[slot]
        return self._read_half(slot, 2 - current) if current else None

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

    @property
    def renewed(self) -> memoryview:
        """Where a body goes that replaces another, see ``rewrite``."""
        return self._scratch[_HALF.size : _CHECKED]

    def rewrite(self, first: int, count: int, renew: Renew) -> None:
        """Have the bodies of the occupied ones among ``count`` slots renewed, read at one go.

        Checksums are not looked at: this is for bodies that authenticate themselves. No sync.
        """
        target = self._scratch
        whole, checked, place = target[:HALF_BYTES], target[:_CHECKED], target[_CHECKED:HALF_BYTES]
        current = self._current
        for slot, kind, _, body in self._occupied(first, count):
            if length := renew(slot, kind, body):
                half = 1 if current[slot] == 1 else 0
                self._sequence += 1
                _HALF.pack_into(target, 0, _MAGIC, VERSION, kind, self._sequence, length, 0)
                checked[_HALF.size + length :] = _ZEROS[: BODY_BYTES - length]
                place[:] = self._checksum(checked, slot, half)
                self._io.pwrite(self._descriptor, whole, _offset(slot, half))
                current[slot] = half + 1

    def take_free(self) -> int:
        """A free slot, growing the file when there is none. It stays free until written."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def write(self, slot: int, kind: int, body: bytes | memoryview) -> None:
        """Put a record into the half that is not current and make that one current. No sync."""
        if not 0 < len(body) <= BODY_BYTES or not 0 < kind < 65536:
            raise SlotFileError(
                f"A slot holds 1 to {BODY_BYTES} bytes of a kind from 1 to 65535, "
                f"not {len(body)} bytes of kind {kind}"
            )
        half = 1 if self._current[slot] == 1 else 0
        self._sequence += 1
        target = self._scratch
        _HALF.pack_into(target, 0, _MAGIC, VERSION, kind, self._sequence, len(body), 0)
        target[_HALF.size : _HALF.size + len(body)] = body
        target[_HALF.size + len(body) : _CHECKED] = _ZEROS[: BODY_BYTES - len(body)]
        target[_CHECKED:HALF_BYTES] = self._checksum(target[:_CHECKED], slot, half)
        self._io.pwrite(self._descriptor, target[:HALF_BYTES], _offset(slot, half))
        self._current[slot] = half + 1

    def zero_stale_halves(self, slots: Sequence[int]) -> ReadBack:
        """Zero the half beside the current one, sync, and read back that it is zero."""
        places = [_offset(slot, 2 - self._current[slot]) for slot in slots]
        for place in places:
            self._io.pwrite(self._descriptor, _ZEROS, place)
        self.sync()
        return self._verify_zero(places)

    def erase(self, slots: Sequence[int]) -> ReadBack:
        """Zero both halves of the slots, sync, read back, and make the slots free again."""
        places = [_offset(slot, half) for slot in slots for half in (0, 1)]
        for place in places:
            self._io.pwrite(self._descriptor, _ZEROS, place)
        self.sync()
        way = self._verify_zero(places)
        for slot in slots:
            self._current[slot] = 0
            if not self._for_owner(slot):
                self._free.append(slot)
        return way

    def scrub_torn(self) -> list[int]:
        """Zero free slots that are not all zeros (a write that was cut short, or damage)."""
        torn = [
            slot for slot, current in enumerate(self._current) if not current and self._dirty(slot)
        ]
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
            fields = _FILE.pack(_FILE_MAGIC, VERSION, HALF_BYTES, 0, os.urandom(16))
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
        if (version, half_bytes) != (VERSION, HALF_BYTES):
            raise SlotFileError(
                f"{self.path} has slot format {version} with halves of {half_bytes} bytes; "
                f"this version reads format {VERSION} with {HALF_BYTES}"
            )

    def _map_free_slots(self) -> None:
        size = os.fstat(self._descriptor).st_size
        self._current = bytearray(max(0, size - PAGE_BYTES) // SLOT_BYTES)
        best = 0
        for slot, half, record in self._halves():
            if half == 0:
                best = 0
            if record is not None and record.sequence > best:
                best = record.sequence
                self._current[slot] = half + 1
                self._sequence = max(self._sequence, best)
        # Low slots first: the list is used from its end.
        self._free = [
            slot
            for slot in reversed(range(self.count))
            if not self._current[slot] and not self._for_owner(slot)
        ]

    def _for_owner(self, slot: int) -> bool:
        return bool(self._group_slots) and slot % self._group_slots == 0

    def _halves(self) -> Iterator[tuple[int, int, SlotRecord | None]]:
        if self._scan_slots == 1:
            for slot in range(self.count):
                for half in (0, 1):
                    yield slot, half, self._read_half(slot, half)
            return
        stretch = memoryview(bytearray(self._scan_slots * SLOT_BYTES))
        for start in range(0, self.count, self._scan_slots):
            got = self._io.pread_into(self._descriptor, stretch, _offset(start, 0))
            for slot in range(start, min(start + self._scan_slots, self.count)):
                for half in (0, 1):
                    at = (slot - start) * SLOT_BYTES + half * HALF_BYTES
                    whole = at + HALF_BYTES <= got
                    raw = stretch[at : at + HALF_BYTES]
                    yield slot, half, self._parse(raw, slot, half) if whole else None

    def _occupied(self, first: int, count: int) -> Iterator[tuple[int, int, int, memoryview]]:
        count = min(count, self.count - first)
        content = memoryview(bytearray(count * SLOT_BYTES))
        self._io.pread_into(self._descriptor, content, _offset(first, 0))
        for number in range(count):
            current = self._current[first + number]
            if current:
                at = number * SLOT_BYTES + (current - 1) * HALF_BYTES
                _, _, kind, sequence, length, _ = _HALF.unpack_from(content, at)
                body = content[at + _HALF.size : at + _HALF.size + min(length, BODY_BYTES)]
                yield first + number, kind, sequence, body

    def _read_half(self, slot: int, half: int) -> SlotRecord | None:
        target = self._scratch[:HALF_BYTES]
        if self._io.pread_into(self._descriptor, target, _offset(slot, half)) != HALF_BYTES:
            return None
        return self._parse(target, slot, half)

    def _parse(self, raw: memoryview, slot: int, half: int) -> SlotRecord | None:
        magic, version, kind, sequence, length, zero = _HALF.unpack_from(raw)
        if magic != _MAGIC or version != VERSION or zero or not 0 < length <= BODY_BYTES:
            return None
        if raw[_CHECKED:] != self._checksum(raw[:_CHECKED], slot, half):
            return None
        return SlotRecord(kind, sequence, raw[_HALF.size : _HALF.size + length])

    def _dirty(self, slot: int) -> bool:
        content = bytearray(SLOT_BYTES)
        self._io.pread_into(self._descriptor, memoryview(content), _offset(slot, 0))
        return content != _ZERO_SLOT

    def _checksum(self, checked: memoryview, slot: int, half: int) -> bytes:
        # Bound to file and place, so that a half copied elsewhere is as invalid as a torn one.
        state = hashlib.sha256(self._file_id + _PLACE.pack(slot, half))
        state.update(checked)
        return state.digest()

    def _grow(self) -> None:
        # Real zeros, not a hole: later overwrites then touch no metadata and stay in place.
        start = self.count
        end = PAGE_BYTES + start * SLOT_BYTES
        self._io.pwrite(self._descriptor, bytes(self._grow_by * SLOT_BYTES), end)
        self.sync()
        self._current.extend(bytes(self._grow_by))
        fresh = reversed(range(start, self.count))
        self._free.extend(slot for slot in fresh if not self._for_owner(slot))

    def _verify_zero(self, places: Sequence[int]) -> ReadBack:
        pages = sorted({place // PAGE_BYTES for place in places})
        wanted: dict[int, list[int]] = {page: [] for page in pages}
        for place in places:
            wanted[place // PAGE_BYTES].append(place % PAGE_BYTES)
        way = ReadBack.DIRECT
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            descriptor, way = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC), ReadBack.CACHED
        buffer = mmap.mmap(-1, PAGE_BYTES)  # O_DIRECT wants aligned memory
        try:
            for page, starts in wanted.items():
                os.preadv(descriptor, [buffer], page * PAGE_BYTES)
                for start in starts:
                    if buffer[start : start + HALF_BYTES] != _ZEROS:
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
_CHECKED = HALF_BYTES - 32
_ZEROS = bytes(HALF_BYTES)
_ZERO_SLOT = bytes(SLOT_BYTES)
_SCAN_SLOTS = 256


def _is_unfinished(head: bytearray) -> bool:
    start = bytes(head[: len(_FILE_MAGIC)])
    torn = start == _FILE_MAGIC[: len(start.rstrip(b"\0"))].ljust(len(start), b"\0")
    return torn and head[_FILE.size : _FILE.size + 32] != _digest_of(head)


def _digest_of(head: bytearray) -> bytes:
    return hashlib.sha256(head[: _FILE.size]).digest()


def _offset(slot: int, half: int) -> int:
    return PAGE_BYTES + slot * SLOT_BYTES + half * HALF_BYTES
