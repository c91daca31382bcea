"""C2SP signed notes with Ed25519 keys, byte for byte. Pure.

Sources: https://c2sp.org/signed-note (notes, verifier keys) and https://c2sp.org/tlog-cosignature
(the timestamped Ed25519 cosignature, signature type 0x04).
"""

import base64
import binascii
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.audit.errors import NoteFormatError

ED25519 = 0x01
COSIGNATURE_V1 = 0x04
MAX_NOTE_BYTES = 1 << 20
MAX_SIGNATURES = 64
_DASH = "\u2014 ".encode()


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: who signed, with which key, and the raw signature."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> bytes:
        """The line with its newline."""
        encoded = base64.b64encode(self.key_id + self.signature)
        return _DASH + self.name.encode() + b" " + encoded + b"\n"


@dataclass(frozen=True, slots=True)
class Note:
    """A text (ending in a newline) and its signatures, not yet verified."""

    text: bytes
    signatures: tuple[NoteSignature, ...]

    def encode(self) -> bytes:
        """The note's bytes."""
        return self.text + b"\n" + b"".join(item.line() for item in self.signatures)


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key that may sign notes: name, signature type, 32 raw bytes."""

    name: str
    algorithm: int
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes: ``SHA-256(name || 0x0A || type || public key)[:4]``."""
        hashed = self.name.encode() + b"\n" + bytes([self.algorithm]) + self.public_key
        return sha256(hashed).digest()[:4]

    def text(self) -> str:
        """The verifier key as text: ``name+key id+base64(type || public key)``."""
        material = base64.b64encode(bytes([self.algorithm]) + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{material}"

    def made(self, item: NoteSignature) -> bool:
        """Whether the signature line names this key; says nothing of its validity."""
        return item.name == self.name and item.key_id == self.key_id

    def verifies(self, text: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is this key's over the note text."""
        if self.algorithm == COSIGNATURE_V1:
            if len(signature) != 72:
                return False
            text = cosigned_message(text, int.from_bytes(signature[:8], "big"))
            signature = signature[8:]
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True


def parse_verifier_key(text: str) -> VerifierKey:
    """The key of a line such as ``example.com/log+1a2b3c4d+AQ...``. Raises NoteFormatError."""
    parts = text.strip().split("+", 2)
    if len(parts) != 3:
        raise NoteFormatError("a verifier key has the form name+key id+base64")
    name, key_id, material = parts
    raw = decode_base64(material)
    if len(raw) != 33 or raw[0] not in (ED25519, COSIGNATURE_V1):
        raise NoteFormatError(
            f"verifier key {name!r} has an unsupported type",
            hint="Ed25519 keys of type 0x01 (log) and 0x04 (witness) are supported.",
        )
    key = VerifierKey(check_key_name(name), raw[0], raw[1:])
    if key.key_id.hex() != key_id:
        raise NoteFormatError(f"verifier key {name!r} does not match its key id {key_id!r}")
    return key


def parse_note(data: bytes) -> Note:
    """The text and signature lines of a note. Raises NoteFormatError; verifies nothing."""
    if len(data) > MAX_NOTE_BYTES:
        raise NoteFormatError(f"a note of {len(data)} bytes is too long ({MAX_NOTE_BYTES} allowed)")
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        raise NoteFormatError("a note must be UTF-8") from None
    if any(character < " " and character != "\n" for character in decoded):
        raise NoteFormatError("a note must not contain control characters other than newline")
    split = data.rfind(b"\n\n")
    if split < 0 or not data.endswith(b"\n") or split + 2 == len(data):
        raise NoteFormatError("a note is a text, an empty line and signature lines")
    lines = data[split + 2 : -1].split(b"\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteFormatError(f"a note has at most {MAX_SIGNATURES} signatures, not {len(lines)}")
    return Note(data[: split + 1], tuple(_parse_signature(line) for line in lines))


def cosigned_message(text: bytes, timestamp: int) -> bytes:
    """What a witness signs: the header, the time in seconds, and the whole note text."""
    return b"cosignature/v1\ntime %d\n" % timestamp + text


def check_key_name(name: str) -> str:
    """``name`` if it can name a key, else NoteFormatError."""
    if not name or "+" in name or any(c.isspace() or c < " " for c in name):
        raise NoteFormatError(f"{name!r} cannot name a key: no space, plus or empty name")
    return name


def decode_base64(text: str) -> bytes:
    """The bytes of standard base64 in its one canonical spelling. Raises NoteFormatError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteFormatError(f"not standard base64: {text[:60]!r}") from None
    # Non-zero padding bits would give one signature two spellings.
    if base64.b64encode(raw).decode() != text:
        raise NoteFormatError(f"not canonical base64: {text[:60]!r}")
    return raw


def _parse_signature(line: bytes) -> NoteSignature:
    # Cut only what starts with the dash: elsewhere the cut may go through a character.
    fields = line[len(_DASH) :].decode().split(" ") if line.startswith(_DASH) else []
    if len(fields) != 2:
        raise NoteFormatError("a signature line has the form: em dash, name, base64")
    raw = decode_base64(fields[1])
    if len(raw) < 5:
        raise NoteFormatError("a signature has a four-byte key id and at least one more byte")
    return NoteSignature(check_key_name(fields[0]), raw[:4], raw[4:])
