"""Segments on disk: names, manifests, durable appends, atomic small files, reading.

A log's folder holds ``segment-<first seq, 16 digits>.jsonl`` files, a ``.manifest.json`` beside
each closed one, the latest ``checkpoint`` and the writer's ``signer.vkey``.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.audit.chain import ChainPoint
from kvrun.audit.errors import AuditError, AuditLogBusyError
from kvrun.audit.merkle import Frontier

CHECKPOINT_NAME = "checkpoint"
SIGNER_NAME = "signer.vkey"
READ_CHUNK_BYTES = 1 << 17
_SEGMENT = re.compile(r"segment-(\d{16})\.jsonl")


class TreePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two records, with all that is needed to go on from there.

    ``frontier`` holds the hex Merkle subtree roots, largest first; ``prev`` is what the record
    with number ``size`` must carry.
    """

    epoch: int
    frontier: list[str]
    prev: str
    size: int
    ts: str

    @staticmethod
    def of(point: ChainPoint, frontier: Frontier) -> "TreePoint":
        """The place where ``frontier`` has taken in every record before ``point``."""
        return TreePoint(
            epoch=point.epoch,
            frontier=[item.hex() for item in frontier.roots],
            prev=point.prev,
            size=frontier.size,
            ts=point.ts,
        )

    def chain_point(self) -> ChainPoint:
        """Where the chain stands here."""
        return ChainPoint(self.size, self.prev, self.epoch, self.ts)

    def merkle_frontier(self) -> Frontier:
        """The tree here. Raises ValueError when the manifest's hashes do not fit its size."""
        return Frontier(self.size, [bytes.fromhex(item) for item in self.frontier])


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a closed segment contains. ``checkpoint`` is the signed note at its end."""

    after: TreePoint
    before: TreePoint
    checkpoint: str
    file_bytes: int
    first_ts: str
    log: str
    sha256: str
    signer: str
    v: int = 1

    def encode(self) -> bytes:
        """The manifest's bytes: one line of JSON, keys sorted."""
        return msgspec.json.encode(self, order="sorted") + b"\n"


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in a file's bytes. Raises AuditError."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise AuditError(f"the segment manifest is malformed: {error}") from None


def segment_name(first_seq: int) -> str:
    """The file name of the segment that starts with record ``first_seq``."""
    return f"segment-{first_seq:016d}.jsonl"


def manifest_path(segment: Path) -> Path:
    """Where a segment's manifest lies."""
    return segment.with_name(segment.name.removesuffix(".jsonl") + ".manifest.json")


def first_seq_of(segment: Path) -> int | None:
    """The first sequence number in a segment's name; None if it is not a segment's name."""
    match = _SEGMENT.fullmatch(segment.name)
    return int(match[1]) if match else None


def list_segments(folder: Path) -> list[Path]:
    """The segments of a log in order."""
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))


def read_chunks(segment: Path, size: int = READ_CHUNK_BYTES) -> Iterator[bytes]:
    """The file in chunks of whole lines; a last chunk without a newline is a torn line."""
    rest = b""
    with segment.open("rb") as file:
        while chunk := file.read(size):
            cut = chunk.rfind(b"\n") + 1
            if cut:
                # One copy instead of two.
                yield b"".join((rest, memoryview(chunk)[:cut]))
                rest = chunk[cut:]
            else:
                rest += chunk
    if rest:
        yield rest


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` durably: it is either the old content or the new, never a mix.

    What lies under the temporary name is removed first, never followed or written into.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_at(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> int:
    """Become the log's one writer until the returned descriptor is closed.

    Raises AuditLogBusyError.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AuditLogBusyError(
            f"another process writes the audit log in {folder}",
            hint="A log has one writer. Stop the other one first.",
        ) from None
    return descriptor


class SegmentFile:
    """The live segment: appends at a known durable end.

    A failed append leaves ``size`` where it was, and the next one writes over whatever the failed
    one left behind; after a failed sync the kernel may have dropped the pages, so bytes count
    only when a sync that followed their write succeeded.
    """

    def __init__(self, path: Path, *, content: bytes | None = None) -> None:
        """Create the file, or go on with one whose whole content is ``content``."""
        self.path = path
        flags = os.O_WRONLY | os.O_CLOEXEC
        if content is None:
            flags |= os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(path, flags, 0o600)
        self._digest = sha256(content or b"")
        self.size = len(content or b"")
        self._dirty = False
        if content is None:
            sync_folder(path.parent)

    def append(self, data: bytes) -> None:
        """Write and sync. Raises OSError, after which ``data`` does not count as written."""
        try:
            if self._dirty:
                os.ftruncate(self._descriptor, self.size)
            _write_at(self._descriptor, data, self.size)
            os.fdatasync(self._descriptor)
        except OSError:
            self._dirty = True
            raise
        self._dirty = False
        self.size += len(data)
        self._digest.update(data)

    def sha256(self) -> str:
        """Hex SHA-256 over the durable content."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the descriptor, cutting off what a failed append may have left."""
        try:
            if self._dirty:
                os.ftruncate(self._descriptor, self.size)
        finally:
            os.close(self._descriptor)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
