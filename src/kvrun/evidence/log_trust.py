"""Whose signatures count for the logs of a bundle. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.audit.checkpoint import Checkpoint, open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import ED25519, VerifierKey
from kvrun.erasure.trust import TrustAnchor, raw_key
from kvrun.keys.signing import KeyPurpose


class UntrustedNoteError(Exception):
    """A checkpoint that does not count, and why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A checkpoint that counts, and the names of those who countersigned it."""

    checkpoint: Checkpoint
    cosigned_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogTrust:
    """The keys of an anchor, as far as they speak for logs."""

    anchor: TrustAnchor

    def open(self, note: bytes, log: str = "") -> Opened:
        """The checkpoint in a note that the log's own key signed.

        ``log``: whose it must be. What a key signed that is revoked by now counts where somebody
        countersigned it before. Raises UntrustedNoteError.
        """
        try:
            origin = open_checkpoint(note, ()).checkpoint.origin
            revoked = self._revoked(origin)
            keys = [key for key in self.anchor.logs() if key.name == origin]
            opened = open_checkpoint(note, [*keys, *revoked], self.anchor.witnesses())
        except NoteFormatError as error:
            raise UntrustedNoteError(f"its checkpoint is malformed: {error.message}") from None
        if log and origin != log:
            raise UntrustedNoteError(f"its checkpoint is of another log, {origin}")
        if opened.broken:
            raise UntrustedNoteError(f"the signature of {', '.join(opened.broken)} is not valid")
        if not opened.signed_by:
            raise UntrustedNoteError(f"no known key of the log {origin} signed its checkpoint")
        if all(key in revoked for key in opened.signed_by):
            until = min(revoked[key] for key in opened.signed_by)
            if not any(item.time and item.time < until for item in opened.cosigned_by):
                raise UntrustedNoteError("the log's key is revoked, and nobody saw it before")
        return Opened(opened.checkpoint, tuple(sorted({item.name for item in opened.cosigned_by})))

    def _revoked(self, origin: str) -> dict[VerifierKey, int]:
        """Revoked keys under the log's name, and when they were revoked (seconds)."""
        return {
            VerifierKey(origin, ED25519, raw_key(key)): key.revoked_at
            for key in self.anchor.keys
            if key.purpose == KeyPurpose.CHECKPOINT.value and key.revoked_at is not None
        }
