"""C2SP checkpoints: a signed statement of a log's size and root hash. Pure but for signing.

Sources: https://c2sp.org/tlog-checkpoint and https://c2sp.org/tlog-cosignature.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import HASH_BYTES
from kvrun.audit.note import (
    COSIGNATURE_V1,
    ED25519,
    Note,
    NoteSignature,
    VerifierKey,
    check_key_name,
    cosigned_message,
    parse_note,
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log's origin, its size in records, and the 32-byte root over them."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def text(self) -> bytes:
        """The note text, ending in a newline."""
        root = base64.b64encode(self.root).decode()
        lines = (self.origin, str(self.size), root, *self.extensions)
        return "".join(f"{line}\n" for line in lines).encode()


class CheckpointSigner(Protocol):
    """Who signs checkpoints."""

    @property
    def key(self) -> VerifierKey:
        """The public side of the signing key."""

    def sign(self, text: bytes) -> bytes:
        """The signature over a note's text."""


@runtime_checkable
class RotatingSigner(Protocol):
    """A signer whose keys are replaced while the log is written."""

    def signers(self) -> Sequence["Ed25519Signer"]:
        """Who signs now, the newest key first; earlier keys sign beside it while they are valid."""
        ...

    def known(self) -> Sequence[VerifierKey]:
        """Every key that this log was ever signed with."""
        ...


class Ed25519Signer:
    """Signs checkpoints with a private Ed25519 key; ``name`` should be the log's id."""

    def __init__(self, name: str, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        public_key = private_key.public_key().public_bytes_raw()
        self._key = VerifierKey(check_key_name(name), ED25519, public_key)

    @property
    def key(self) -> VerifierKey:
        """The verifier key that people hand to auditors."""
        return self._key

    def sign(self, text: bytes) -> bytes:
        """A 64-byte Ed25519 signature."""
        return self._private_key.sign(text)


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A verified witness signature and the time it states (seconds, 0 for a plain signature)."""

    name: str
    time: int


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint and who signed it.

    ``signed_by``: verified keys of the log. ``cosigned_by``: verified witnesses. ``broken``: names
    of known keys whose signature did not verify, for which the note must be rejected.
    """

    checkpoint: Checkpoint
    signed_by: tuple[VerifierKey, ...]
    cosigned_by: tuple[Cosignature, ...]
    broken: tuple[str, ...]

    @property
    def is_signed(self) -> bool:
        """Whether a key of this very log signed: one whose name is the log's id."""
        return any(key.name == self.checkpoint.origin for key in self.signed_by)


def sign_checkpoint(checkpoint: Checkpoint, signer: CheckpointSigner) -> bytes:
    """The signed note of a checkpoint."""
    text = checkpoint.text()
    signers = signer.signers() if isinstance(signer, RotatingSigner) else (signer,)
    items = [NoteSignature(one.key.name, one.key.key_id, one.sign(text)) for one in signers]
    return Note(text, tuple(items)).encode()


def known_keys(signer: CheckpointSigner) -> Sequence[VerifierKey]:
    """The keys whose signatures make a checkpoint this signer's own."""
    return signer.known() if isinstance(signer, RotatingSigner) else (signer.key,)


def cosign_checkpoint(
    note: bytes, name: str, private_key: Ed25519PrivateKey, timestamp: int
) -> bytes:
    """The note with a witness's timestamped cosignature added (seconds since 1970)."""
    parsed = parse_note(note)
    parse_checkpoint(parsed.text)
    public_key = private_key.public_key().public_bytes_raw()
    key = VerifierKey(check_key_name(name), COSIGNATURE_V1, public_key)
    signature = private_key.sign(cosigned_message(parsed.text, timestamp))
    item = NoteSignature(name, key.key_id, timestamp.to_bytes(8, "big") + signature)
    return Note(parsed.text, (*parsed.signatures, item)).encode()


def parse_checkpoint(text: bytes) -> Checkpoint:
    """The checkpoint of a note's text. Raises NoteFormatError."""
    lines = text.decode().split("\n")
    if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
        raise NoteFormatError("a checkpoint has at least three lines, none of them empty")
    origin, size, root = lines[:3]
    if not (size.isascii() and size.isdigit()) or (size != "0" and size.startswith("0")):
        raise NoteFormatError(f"a checkpoint's size is a decimal number, not {size[:40]!r}")
    if len(size) > 16:
        raise NoteFormatError("a checkpoint's size is below 2^53")
    try:
        root_hash = base64.b64decode(root, validate=True)
    except (binascii.Error, ValueError):
        root_hash = b""
    if len(root_hash) != HASH_BYTES or base64.b64encode(root_hash).decode() != root:
        raise NoteFormatError("a checkpoint's third line is the base64 of a 32-byte root hash")
    return Checkpoint(origin, int(size), root_hash, tuple(lines[3:-1]))


def open_checkpoint(
    note: bytes, keys: Sequence[VerifierKey], witnesses: Sequence[VerifierKey] = ()
) -> OpenedCheckpoint:
    """The checkpoint in ``note`` and which of the given keys signed it.

    Signatures of unknown keys are ignored, as the format demands. Raises NoteFormatError.
    """
    parsed = parse_note(note)
    signed: list[VerifierKey] = []
    cosigned: list[Cosignature] = []
    broken: list[str] = []
    for item in parsed.signatures:
        for key in (*keys, *witnesses):
            if not key.made(item):
                continue
            if not key.verifies(parsed.text, item.signature):
                broken.append(key.name)
            elif key in keys:
                signed.append(key)
            else:
                timed = key.algorithm == COSIGNATURE_V1
                time = int.from_bytes(item.signature[:8], "big") if timed else 0
                cosigned.append(Cosignature(key.name, time))
            break
    checkpoint = parse_checkpoint(parsed.text)
    return OpenedCheckpoint(checkpoint, tuple(signed), tuple(cosigned), tuple(broken))


def continuous_keys(
    claimed: Sequence[VerifierKey], notes: Sequence[bytes]
) -> tuple[VerifierKey, ...]:
    """The first claimed key, and those that signed the same checkpoint as one of them did.

    This is how a log shows, by itself, that its key was replaced: both sign for a while.
    """
    adopted, rest = list(claimed[:1]), list(claimed[1:])
    moved = True
    while moved and rest:
        moved = False
        for key in list(rest):
            if any(_both_signed(note, adopted, key) for note in notes):
                adopted.append(key)
                rest.remove(key)
                moved = True
    return tuple(adopted)


def _both_signed(note: bytes, adopted: Sequence[VerifierKey], key: VerifierKey) -> bool:
    try:
        signed_by = open_checkpoint(note, [*adopted, key]).signed_by
    except NoteFormatError:
        return False
    return key in signed_by and any(other in signed_by for other in adopted)
