"""Signed statements of a collector about a log: what was pruned, what was retired. Pure.

A statement is a C2SP signed note. Its text is a line that says what kind it is, the log's id, and
one line of JSON. The signature is the collector's timestamped one (type 0x04), made with the key
that cosigns checkpoints; no statement can be read as a checkpoint, whose second line is a number.
"""

from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import (
    COSIGNATURE_V1,
    Note,
    NoteSignature,
    VerifierKey,
    cosigned_message,
    parse_note,
)
from kvrun.audit.segment import TreePoint

TOMBSTONE = "kvrun-audit-tombstone/v1"
RETIREMENT = "kvrun-audit-retirement/v1"


class PrunedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment that was deleted: where it started, and what its file was."""

    file_bytes: int
    first_seq: int
    sha256: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands where pruned records were: the log's state before and after them."""

    after: TreePoint
    before: TreePoint
    reason: str
    segments: list[PrunedSegment]


@dataclass(frozen=True, slots=True)
class OpenedStatement:
    """A statement as it stands in its note, and who of the known keys signed it when (seconds)."""

    log: str
    body: bytes
    signed_by: tuple[tuple[str, int], ...]


def sign_statement(
    kind: str, log: str, body: bytes, name: str, private_key: Ed25519PrivateKey, timestamp: int
) -> bytes:
    """The signed note of a statement; ``body`` is one line of JSON without a newline."""
    text = f"{kind}\n{log}\n".encode() + body + b"\n"
    public_key = private_key.public_key().public_bytes_raw()
    key = VerifierKey(name, COSIGNATURE_V1, public_key)
    signature = private_key.sign(cosigned_message(text, timestamp))
    item = NoteSignature(name, key.key_id, timestamp.to_bytes(8, "big") + signature)
    return Note(text, (item,)).encode()


def open_statement(note: bytes, kind: str, keys: tuple[VerifierKey, ...]) -> OpenedStatement:
    """The statement of that kind in ``note``. Raises NoteFormatError.

    A signature of a known key that does not verify makes the note malformed; unknown ones are
    passed over, so ``signed_by`` may be empty.
    """
    parsed = parse_note(note)
    lines = parsed.text.split(b"\n")
    if len(lines) != 4 or lines[0] != kind.encode() or lines[3]:
        raise NoteFormatError(f"the note is no {kind} statement")
    signed = []
    for item in parsed.signatures:
        for key in keys:
            if key.made(item) and key.algorithm == COSIGNATURE_V1:
                if not key.verifies(parsed.text, item.signature):
                    raise NoteFormatError(f"the signature of {key.name} is not valid")
                signed.append((key.name, int.from_bytes(item.signature[:8], "big")))
    return OpenedStatement(lines[1].decode(), lines[2], tuple(signed))


def open_tombstone(note: bytes, keys: tuple[VerifierKey, ...]) -> tuple[Tombstone, OpenedStatement]:
    """The tombstone in ``note``, well-formed and with who signed it. Raises NoteFormatError."""
    opened = open_statement(note, TOMBSTONE, keys)
    try:
        tombstone = msgspec.json.decode(opened.body, type=Tombstone)
        tombstone.before.merkle_frontier()
        tombstone.after.merkle_frontier()
    except (msgspec.MsgspecError, ValueError) as error:
        raise NoteFormatError(f"the tombstone is malformed: {error}") from None
    return tombstone, opened
