"""Verify a log from its files: the thin shell around :mod:`kvrun.audit.verify`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvrun.audit.attestation import Attestation
from kvrun.audit.errors import AuditError, TimestampError
from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    SIGNER_NAME,
    list_segments,
    manifest_path,
    read_chunks,
)
from kvrun.audit.timestamp import SUFFIX, verify_token
from kvrun.audit.verdict import Code, VerificationReport
from kvrun.audit.verify import SegmentSource, Trust, verify_log


def verify_files(paths: Sequence[Path], trust: Trust) -> VerificationReport:
    """Verify segments, or whole log folders, given in any order.

    The manifest, the latest checkpoint and the key beside the segments are read too, as claims
    of the log. The latest checkpoint counts only when the newest segment of its folder is among
    those given. Raises AuditError for a path that cannot be read.
    """
    try:
        segments = sorted(
            (path for given in paths for path in _segments(given)), key=lambda path: path.name
        )
        folders = sorted({path if path.is_dir() else path.parent for path in paths})
        latest = claimed = None
        for folder in folders:
            present = list_segments(folder)
            if not present or present[-1] in segments:
                latest = _read(folder / CHECKPOINT_NAME) or latest
            claimed = _read(folder / SIGNER_NAME) or claimed
        sources = [
            SegmentSource(path.name, partial(read_chunks, path), _read(manifest_path(path)))
            for path in segments
        ]
        tombstones = [
            path.read_bytes() for folder in folders for path in sorted(folder.glob("*.tombstone"))
        ]
        claimed_key = (claimed or b"").decode(errors="replace").strip()
        return verify_log(
            sources, latest=latest, claimed_key=claimed_key, tombstones=tombstones, trust=trust
        )
    except OSError as error:
        raise AuditError(f"{error.filename} cannot be read: {error.strerror}") from error


def read_keys(path: Path) -> tuple[VerifierKey, ...]:
    """The verifier keys in a file, one a line; empty lines and lines with ``#`` are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"the key file {path} cannot be read: {error}") from error
    keys = [parse_verifier_key(line) for line in lines if line.strip() and line[0] != "#"]
    if not keys:
        raise AuditError(f"the key file {path} holds no key")
    return tuple(keys)


def read_timestamps(
    paths: Sequence[Path], authorities: bytes, names: str
) -> tuple[Attestation, ...]:
    """The timestamps in token files (``NOTE.tsr`` beside ``NOTE``) or folders of them.

    ``authorities``: PEM certificates of the roots that count, called ``names`` in findings. A token
    that does not hold is among the result, with the reason. Raises AuditError for a path that
    cannot be read.
    """
    tokens = [
        token
        for path in paths
        for token in (sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path])
    ]
    if not tokens:
        raise AuditError(f"there is no timestamp ({SUFFIX}) in {', '.join(map(str, paths))}")
    return tuple(_timestamp(token, authorities, names) for token in tokens)


def _timestamp(token: Path, authorities: bytes, names: str) -> Attestation:
    try:
        note, answer = token.with_suffix("").read_bytes(), token.read_bytes()
    except OSError as error:
        raise AuditError(f"{error.filename} cannot be read: {error.strerror}") from error
    try:
        return Attestation(note, names, verify_token(note, answer, authorities), Code.TIMESTAMPED)
    except TimestampError as error:
        return Attestation(note, names, 0, Code.TIMESTAMPED, f"{token.name}: {error.message}")


def _segments(path: Path) -> list[Path]:
    return list_segments(path) if path.is_dir() else [path]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
