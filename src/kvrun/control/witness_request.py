"""The ``add-checkpoint`` request of C2SP ``tlog-witness``, byte for byte. Pure.

Source: https://c2sp.org/tlog-witness. ``docs/spec/witness.md`` describes both sides.
"""

import base64
from dataclasses import dataclass

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import HASH_BYTES
from kvrun.audit.note import decode_base64

PATH = "/add-checkpoint"
SIZE_TYPE = "text/x.tlog.size"
MAX_PROOF = 63
MAX_REQUEST_BYTES = 64 * 1024
_MAX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The size last cosigned, the hashes from there to the note's size, and the signed note."""

    old_size: int
    proof: tuple[bytes, ...]
    note: bytes

    def encode(self) -> bytes:
        """The request's body."""
        lines = [f"old {self.old_size}", *(base64.b64encode(item).decode() for item in self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.note


def parse_request(body: bytes) -> AddCheckpoint:
    """The request in a body. Raises NoteFormatError; the note's own form is not looked at."""
    if len(body) > MAX_REQUEST_BYTES:
        raise NoteFormatError(f"a request has at most {MAX_REQUEST_BYTES} bytes, not {len(body)}")
    head, separator, note = body.partition(b"\n\n")
    if not separator:
        raise NoteFormatError("a request has an empty line before its checkpoint")
    try:
        first, *rest = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise NoteFormatError("a request's lines before the checkpoint are ASCII") from None
    word, _, number = first.partition(" ")
    if word != "old":
        raise NoteFormatError('a request starts with the line "old SIZE"')
    if len(rest) > MAX_PROOF:
        raise NoteFormatError(f"a request has at most {MAX_PROOF} proof lines, not {len(rest)}")
    proof = tuple(decode_base64(line) for line in rest)
    if any(len(item) != HASH_BYTES for item in proof):
        raise NoteFormatError(f"a proof line is the base64 of {HASH_BYTES} bytes")
    return AddCheckpoint(parse_size(number), proof, note)


def parse_size(text: str) -> int:
    """A tree size as C2SP writes it: ASCII decimal, no leading zero. Raises NoteFormatError."""
    valid = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not valid or (text != "0" and text[0] == "0"):
        raise NoteFormatError(f"a size is a decimal number below 2^53, not {text[:40]!r}")
    return int(text)
