"""Find where a log on disk ends, after a clean stop or a crash.

A line that a crash tore is cut off, kept aside and reported; it is never skipped in silence. A
log that contradicts its own signed checkpoint is refused: continuing it would sign a fork.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from kvrun.audit.chain import ChainPoint, ChainWalker
from kvrun.audit.checkpoint import Checkpoint, CheckpointSigner, known_keys, open_checkpoint
from kvrun.audit.errors import AuditError, AuditLogDamagedError, AuditRecordError, NoteFormatError
from kvrun.audit.merkle import Frontier
from kvrun.audit.record import Event, decode_record
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    Manifest,
    TreePoint,
    first_seq_of,
    list_segments,
    manifest_path,
    parse_manifest,
    read_chunks,
)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """Where a log ends and how it got there.

    ``segment`` is the live one, None when the next record starts a new segment; ``content`` is its
    intact content and ``before`` the place where it starts. ``cut`` counts the bytes cut off its
    end and ``cut_records`` the whole records among them. ``clean`` says that the last writer
    closed the log or there was none. ``signed_size`` is the size that the log has signed for.
    """

    point: ChainPoint
    frontier: Frontier
    segment: Path | None
    content: bytes
    before: TreePoint
    first_ts: str
    clean: bool
    cut: int
    cut_records: int
    signed_size: int


def recover(folder: Path, log_id: str, signer: CheckpointSigner) -> RecoveredLog:
    """Read the end of the log in ``folder`` and cut off a torn tail.

    Raises AuditLogDamagedError when records that the log has signed for are missing or changed,
    OSError when the folder cannot be read or the tail not be cut.
    """
    signed = _read_checkpoint(folder, log_id, signer)
    segments = list_segments(folder)
    if not segments:
        if signed is not None and signed.size:
            raise _damaged(folder, f"its checkpoint covers {signed.size} records, none are left")
        start = TreePoint.of(ChainPoint.start(log_id), Frontier())
        return RecoveredLog(start.chain_point(), Frontier(), None, b"", start, "", True, 0, 0, 0)
    last = segments[-1]
    if manifest_path(last).exists():
        return _after_closed_segment(folder, last, log_id, signer, signed)
    return _within_live_segment(folder, last, log_id, signer, signed)


def _after_closed_segment(
    folder: Path, segment: Path, log_id: str, signer: CheckpointSigner, signed: Checkpoint | None
) -> RecoveredLog:
    manifest = _read_manifest(manifest_path(segment), log_id, signer)
    if segment.stat().st_size != manifest.file_bytes:
        raise _damaged(folder, f"{segment.name} is not as long as its manifest says")
    frontier = manifest.after.merkle_frontier()
    if signed is not None and signed.size > frontier.size:
        raise _damaged(
            folder, f"its checkpoint covers {signed.size} records, {frontier.size} are left"
        )
    lines = segment.read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
    try:
        clean = decode_record(lines[-1]).event is Event.LOG_CLOSED
    except AuditRecordError:
        raise _damaged(folder, f"the last record of {segment.name} is malformed") from None
    point = manifest.after.chain_point()
    return RecoveredLog(
        point, frontier, None, b"", manifest.after, "", clean, 0, 0, manifest.after.size
    )


def _within_live_segment(
    folder: Path, segment: Path, log_id: str, signer: CheckpointSigner, signed: Checkpoint | None
) -> RecoveredLog:
    before = _start_of(folder, segment, log_id, signer)
    signed_size = max(before.size, signed.size if signed else 0)
    frontier = before.merkle_frontier()
    walker = ChainWalker(log_id, before.chain_point())
    intact: list[bytes] = []
    head_at_signed: bytes | None = None
    for chunk in read_chunks(segment):
        whole = _intact_lines(chunk, log_id, walker.point or before.chain_point())
        _, leaves = walker.feed(whole)
        for leaf in leaves:
            if signed is not None and frontier.size == signed.size:
                head_at_signed = frontier.root()
            frontier.append(leaf)
        intact.append(whole)
        if len(whole) != len(chunk):
            break
    content = b"".join(intact)
    if signed is not None:
        if frontier.size == signed.size:
            head_at_signed = frontier.root()
        if signed.size > frontier.size:
            raise _damaged(
                folder, f"its checkpoint covers {signed.size} records, {frontier.size} are left"
            )
        if signed.size >= before.size and head_at_signed != signed.root:
            raise _damaged(folder, f"its first {signed.size} records are not the ones it signed")
    cut, cut_records = _cut_tail(segment, len(content), frontier.size)
    point = walker.point or before.chain_point()
    closed = walker.last_event is Event.LOG_CLOSED
    return RecoveredLog(
        point,
        frontier,
        segment,
        content,
        before,
        walker.first_ts,
        closed and not cut,
        cut,
        cut_records,
        signed_size,
    )


def _start_of(folder: Path, segment: Path, log_id: str, signer: CheckpointSigner) -> TreePoint:
    first = first_seq_of(segment) or 0
    if first == 0:
        return TreePoint.of(ChainPoint.start(log_id), Frontier())
    # Names sort by sequence number, and a manifest outlives its collected segment.
    earlier = [
        path
        for path in sorted(folder.glob("segment-*.manifest.json"))
        if path < manifest_path(segment)
    ]
    if not earlier:
        raise _damaged(folder, f"there is no manifest of the segment before {segment.name}")
    manifest = _read_manifest(earlier[-1], log_id, signer)
    if manifest.after.size != first:
        raise _damaged(
            folder,
            f"the records before {segment.name} end at {manifest.after.size}",
        )
    return manifest.after


def _intact_lines(chunk: bytes, log_id: str, start: ChainPoint) -> bytes:
    """The longest run of whole, chained records at the start of ``chunk``."""
    whole = chunk[: chunk.rfind(b"\n") + 1]
    trial = ChainWalker(log_id, start)
    trial.feed(whole)
    if not trial.breaks:
        return whole
    trial = ChainWalker(log_id, start)
    length = 0
    for line in whole[:-1].split(b"\n"):
        trial.feed(line + b"\n")
        if trial.breaks:
            break
        length += len(line) + 1
    return whole[:length]


def _cut_tail(segment: Path, length: int, next_seq: int) -> tuple[int, int]:
    size = segment.stat().st_size
    if size == length:
        return 0, 0
    descriptor = os.open(segment, os.O_RDWR | os.O_CLOEXEC)
    try:
        tail = os.pread(descriptor, size - length, length)
        kept = os.open(
            segment.with_name(f"{segment.stem}.cut-at-{next_seq}"),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
        )
        try:
            os.write(kept, tail)
            os.fsync(kept)
        finally:
            os.close(kept)
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size - length, sum(1 for line in tail.split(b"\n")[:-1] if _is_record(line))


def _is_record(line: bytes) -> bool:
    try:
        decode_record(line)
    except AuditRecordError:
        return False
    return True


def _read_checkpoint(folder: Path, log_id: str, signer: CheckpointSigner) -> Checkpoint | None:
    path = folder / CHECKPOINT_NAME
    if not path.exists():
        return None
    return _own_checkpoint(path, path.read_bytes(), log_id, signer)


def _read_manifest(path: Path, log_id: str, signer: CheckpointSigner) -> Manifest:
    try:
        manifest = parse_manifest(path.read_bytes())
        frontier = manifest.after.merkle_frontier()
    except (AuditError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name} is malformed: {error}") from None
    checkpoint = _own_checkpoint(path, manifest.checkpoint.encode(), log_id, signer)
    if (checkpoint.size, checkpoint.root) != (frontier.size, frontier.root()):
        raise _damaged(path.parent, f"{path.name} does not agree with the checkpoint in it")
    return manifest


def _own_checkpoint(path: Path, note: bytes, log_id: str, signer: CheckpointSigner) -> Checkpoint:
    try:
        opened = open_checkpoint(note, known_keys(signer))
    except NoteFormatError as error:
        raise _damaged(
            path.parent, f"the checkpoint in {path.name} is malformed: {error}"
        ) from None
    if not opened.signed_by or opened.broken or opened.checkpoint.origin != log_id:
        raise _damaged(
            path.parent, f"the checkpoint in {path.name} is not signed by this log's key"
        )
    return opened.checkpoint


def _damaged(folder: Path, what: str) -> AuditLogDamagedError:
    return AuditLogDamagedError(
        f"the audit log in {folder} cannot be continued: {what}",
        hint="Keep the folder as evidence, and start a new log with a new id in another folder.",
    )
