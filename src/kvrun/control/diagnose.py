"""What exactly is wrong with a log that deviates, and the evidence that others can check."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvrun.audit.checkpoint import parse_checkpoint
from kvrun.audit.consistency import TreeRange, prove_consistency
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import leaf_hashes
from kvrun.audit.note import parse_note
from kvrun.control.alerts import AlertKind, DeviationError, Evidence, FailedProof, encode_hash
from kvrun.control.follow import whole_lines
from kvrun.control.remembered import RememberedLog
from kvrun.control.sources import LogSource, LogState, SourceUnavailableError

MAX_EVIDENCE_BYTES = 128 * 2**20
_MAX_LISTINGS = 100
_HISTORY = frozenset(
    {
        AlertKind.MALFORMED,
        AlertKind.MISSING_RECORDS,
        AlertKind.OUT_OF_ORDER,
        AlertKind.CHAIN_BROKEN,
        AlertKind.EPOCH_ORDER,
        AlertKind.ROOT_MISMATCH,
        AlertKind.MANIFEST_MISMATCH,
        AlertKind.TRUNCATED,
        AlertKind.TORN,
    }
)


def gather(
    deviation: DeviationError,
    remembered: RememberedLog,
    state: LogState,
    source: LogSource,
    folder: Path,
) -> tuple[DeviationError, Evidence]:
    """The deviation by its right name, and the evidence.

    The records that the instance shows, from the first one that is not in Storage, are copied to
    ``records.jsonl`` in ``folder`` (``MAX_EVIDENCE_BYTES`` at most). Where the ones that were
    verified before are not among them any more, the log was forked.
    """
    evidence = Evidence(
        files={
            "remembered-checkpoint": remembered.note.encode(),
            "remembered.vkey": remembered.key.encode() + b"\n",
            "shown-checkpoint": state.checkpoint,
            "shown.vkey": state.verifier_key.encode("ascii", "replace") + b"\n",
        }
    )
    shown = folder / "records.jsonl"
    try:
        _copy(source, remembered.stored.size, shown)
    except SourceUnavailableError as error:
        evidence.files["records-missing"] = f"{error.message}\n".encode()
    if deviation.kind in _HISTORY and shown.exists():
        deviation = _compare(deviation, remembered, state, shown, evidence)
    return deviation, evidence


def _copy(source: LogSource, from_seq: int, path: Path) -> None:
    left = MAX_EVIDENCE_BYTES
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        after = from_seq
        segments = source.segments(after)
        for _ in range(_MAX_LISTINGS):
            for segment in segments:
                # A segment that begins earlier than any that was stored: its first records.
                skip = max(0, from_seq - segment.first_seq)
                offset = 0
                while (most := min(left, segment.size_bytes - offset)) > 0:
                    piece = source.read(segment.first_seq, offset, most)
                    if not piece:
                        break
                    offset += len(piece)
                    while skip and piece:
                        _, _, piece = piece.partition(b"\n")
                        skip -= 1
                    file.write(piece)
                    left -= len(piece)
                after = segment.first_seq + 1
            segments = [item for item in source.segments(after) if item.first_seq >= after]
            if not segments or left <= 0:
                break
        file.flush()
        os.fsync(file.fileno())


def _compare(
    deviation: DeviationError,
    remembered: RememberedLog,
    state: LogState,
    shown: Path,
    evidence: Evidence,
) -> DeviationError:
    """Whether the tree over what was shown still holds the remembered one."""
    frontier = remembered.stored.merkle_frontier()
    old = remembered.seen.size
    try:
        checkpoint = parse_checkpoint(parse_note(state.checkpoint).text)
    except NoteFormatError:
        return deviation
    newer = TreeRange(old)
    with shown.open("rb") as file, suppress(DeviationError):  # what is no line ends the records
        for data in whole_lines(iter(lambda: file.read(1 << 20), b"")):
            leaves = leaf_hashes(data[:-1].split(b"\n"))
            before = leaves[: max(0, old - frontier.size)]
            frontier.extend(before)
            newer.extend(leaves[len(before) :][: max(0, checkpoint.size - newer.end)])
    if frontier.size < old:
        what = f"{frontier.size} of the {old} records that were verified before are shown"
        return DeviationError(AlertKind.FORKED, deviation.seq, f"{what} ({deviation.message})")
    whole = newer.end == checkpoint.size
    evidence.proof = FailedProof(
        old_size=old,
        old_root=encode_hash(remembered.root),
        new_size=checkpoint.size,
        new_root=encode_hash(checkpoint.root),
        found_root=encode_hash(frontier.root()),
        hashes=[encode_hash(item) for item in prove_consistency(frontier, newer)] if whole else [],
    )
    # A new first record that names another one before it: what lies before was replaced.
    replaced = deviation.kind is AlertKind.CHAIN_BROKEN and deviation.seq == old > 0
    if frontier.root() != remembered.root or replaced:
        what = f"the first {old} records are not the ones that were verified before"
        return DeviationError(AlertKind.FORKED, deviation.seq, f"{what} ({deviation.message})")
    return deviation
