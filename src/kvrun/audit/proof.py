"""C2SP ``tlog-proof``: one record's membership in a log, checkable offline. Pure.

Source: https://c2sp.org/tlog-proof. Files end in ``.tlog-proof``.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from kvrun.audit.checkpoint import OpenedCheckpoint, open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import HASH_BYTES, leaf_hash, verify_inclusion
from kvrun.audit.note import VerifierKey, decode_base64

HEADER = "c2sp.org/tlog-proof@v1"
MAX_PATH = 64


@dataclass(frozen=True, slots=True)
class LogProof:
    """The index of a record, its inclusion path, the checkpoint's note, and opaque extra data."""

    index: int
    path: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes = b""

    def encode(self) -> bytes:
        """The proof file's bytes."""
        lines = [HEADER]
        if self.extra:
            lines.append(f"extra {base64.b64encode(self.extra).decode()}")
        lines.append(f"index {self.index}")
        lines += [base64.b64encode(item).decode() for item in self.path]
        return "\n".join(lines).encode() + b"\n\n" + self.checkpoint


def parse_proof(data: bytes) -> LogProof:
    """The proof in a file's bytes. Raises NoteFormatError; verifies nothing."""
    head, separator, checkpoint = data.partition(b"\n\n")
    if not separator:
        raise NoteFormatError("a proof has an empty line before its checkpoint")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise NoteFormatError("a proof's lines are ASCII") from None
    if lines.pop(0) != HEADER:
        raise NoteFormatError(f"a proof starts with the line {HEADER}")
    extra = b""
    if lines and lines[0].startswith("extra "):
        extra = decode_base64(lines.pop(0)[6:])
    if not lines or not lines[0].startswith("index "):
        raise NoteFormatError("a proof has a line with the index of its record")
    number = lines.pop(0)[6:]
    if not number.isdigit() or len(number) > 16 or (number != "0" and number[0] == "0"):
        raise NoteFormatError(f"a proof's index is a decimal number, not {number[:40]!r}")
    path = tuple(decode_base64(line) for line in lines)
    if len(path) > MAX_PATH or any(len(item) != HASH_BYTES for item in path):
        raise NoteFormatError(f"a proof's path is at most {MAX_PATH} hashes of {HASH_BYTES} bytes")
    return LogProof(int(number), path, checkpoint, extra)


def check_proof(
    proof: LogProof, record: bytes, keys: Sequence[VerifierKey]
) -> OpenedCheckpoint | None:
    """The signed checkpoint that covers ``record`` (its line without newline), else None.

    None means: not signed by any of ``keys``, or the record is not at that place of the tree.
    """
    opened = open_checkpoint(proof.checkpoint, keys)
    if not opened.signed_by or opened.broken:
        return None
    tree = opened.checkpoint
    included = verify_inclusion(leaf_hash(record), proof.index, tree.size, proof.path, tree.root)
    return opened if included else None
