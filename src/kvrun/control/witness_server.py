"""A witness for the logs of other installations: C2SP ``tlog-witness`` over HTTP.

Source: https://c2sp.org/tlog-witness. It cosigns only what continues what it cosigned before, and
remembers durably before it signs. There is no login: a log is known by its key.
"""

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvrun.audit.checkpoint import Checkpoint, open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import EMPTY_ROOT, verify_consistency
from kvrun.audit.note import NoteSignature, VerifierKey, cosigned_message
from kvrun.control.witness_request import SIZE_TYPE, AddCheckpoint, parse_request
from kvrun.control.witness_state import Refusal, Remembered, WitnessState

CLOCK_SLACK_S = 300
_TEXT = "text/plain; charset=utf-8"
_log = logging.getLogger(__name__)


class Cosigned(StrEnum):
    """What a checkpoint was that got a cosignature."""

    FIRST = "first"
    """The first one of its log."""
    GROWN = "grown"
    UNCHANGED = "unchanged"
    """The one that was cosigned last, once more."""


class Refused(StrEnum):
    """Why a checkpoint got none."""

    MALFORMED = "malformed"
    UNKNOWN_LOG = "unknown_log"
    UNSIGNED = "unsigned"
    """No known key of the log signed it."""
    OLD_SIZE = "old_size"
    """The log asked from another size than was cosigned last, and is told which that is."""
    SMALLER = "smaller"
    """Less than was cosigned: the log was rolled back, or somebody sent an old note again."""
    FORK = "fork"
    """Another root for the size that was cosigned: the log's key signed two histories."""
    PROOF = "proof"
    """The proof does not lead here from what was cosigned: a fork, or a wrong proof."""
    UNAVAILABLE = "unavailable"
    """Nothing can be remembered now."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer to a checkpoint, and what it was."""

    status: int
    body: bytes
    outcome: Cosigned | Refused
    media_type: str = _TEXT


class Cosigner:
    """Answers ``add-checkpoint`` for the logs whose verifier keys it was given. Thread-safe.

    A key counts for the log whose id is the key's name. ``now``: seconds since 1970.
    """

    def __init__(
        self, state: WitnessState, log_keys: Sequence[VerifierKey], *, now: Callable[[], float]
    ) -> None:
        self._state = state
        self._now = now
        logs: dict[str, list[VerifierKey]] = {}
        for key in log_keys:
            logs.setdefault(key.name, []).append(key)
        self._logs: Mapping[str, list[VerifierKey]] = logs

    @property
    def logs(self) -> int:
        """How many logs it knows."""
        return len(self._logs)

    def add_checkpoint(self, body: bytes) -> Reply:
        """The answer to a request's body."""
        try:
            request = parse_request(body)
            checkpoint = open_checkpoint(request.note, ()).checkpoint
            keys = self._logs.get(checkpoint.origin)
            if keys is None:
                return refusal(404, "this witness does not know that log", Refused.UNKNOWN_LOG)
            opened = open_checkpoint(request.note, keys)
        except NoteFormatError as error:
            return refusal(400, error.message, Refused.MALFORMED)
        if not opened.signed_by or opened.broken:
            said = "no known key of that log signed this checkpoint"
            return refusal(403, said, Refused.UNSIGNED)
        try:
            return self._decide(request, checkpoint)
        except sqlite3.Error as error:
            _log.error("cannot remember a checkpoint: %s", error)
            said = "this witness cannot remember anything now"
            return refusal(503, said, Refused.UNAVAILABLE)

    def _decide(self, request: AddCheckpoint, checkpoint: Checkpoint) -> Reply:
        known = self._state.remembered(checkpoint.origin)
        refused = judge(request, checkpoint, known)
        if refused is None:
            return self._cosign(request, checkpoint, known)
        if refused.outcome in _ANOTHER_HISTORY:
            _log.warning("refused %d records of %s", checkpoint.size, checkpoint.origin)
            kept = Refusal(int(self._now()), refused.status, request.note)
            self._state.refuse(checkpoint.origin, kept)
        return refused

    def _cosign(
        self, request: AddCheckpoint, checkpoint: Checkpoint, known: Remembered | None
    ) -> Reply:
        # A cosignature states that no larger size was seen by its time, so a small step back of the
        # clock is held. A large one is stated: the clock was wrong before, and must not stay wrong.
        time = int(self._now())
        if known is not None and time < known.time <= time + CLOCK_SLACK_S:
            time = known.time
        new = Remembered(checkpoint.size, checkpoint.root, request.note, time)
        if not self._state.remember(checkpoint.origin, known, new):
            present = self._state.remembered(checkpoint.origin)
            return _size(present.size if present else 0, Refused.OLD_SIZE)
        key = self._state.key
        text = checkpoint.text()
        signature = self._state.private_key.sign(cosigned_message(text, time))
        item = NoteSignature(key.name, key.key_id, time.to_bytes(8, "big") + signature)
        return Reply(200, item.line(), _cosigned(new, known))


def judge(request: AddCheckpoint, checkpoint: Checkpoint, known: Remembered | None) -> Reply | None:
    """The refusal of a request whose signature holds, or None: it continues what is known. Pure."""
    size, root = (known.size, known.root) if known else (0, EMPTY_ROOT)
    if request.old_size > checkpoint.size:
        reason = Refused.SMALLER if checkpoint.size < size else Refused.MALFORMED
        return refusal(400, "the old size is larger than the checkpoint's", reason)
    if checkpoint.size == size and checkpoint.root != root:
        return _size(size, Refused.FORK if known else Refused.MALFORMED)
    if request.old_size != size:
        return _size(size, Refused.SMALLER if checkpoint.size < size else Refused.OLD_SIZE)
    if verify_consistency(size, checkpoint.size, root, checkpoint.root, request.proof):
        return None
    if known is None:
        return refusal(422, "a proof from size 0 is empty", Refused.MALFORMED)
    # What was cosigned is signed by the log, so it lets the asker prove a fork.
    return Reply(422, known.note, Refused.PROOF)


def refusal(status: int, text: str, reason: Refused) -> Reply:
    """A refusal in words, for people."""
    return Reply(status, text.encode() + b"\n", reason)


def _cosigned(new: Remembered, known: Remembered | None) -> Cosigned:
    if known is None:
        return Cosigned.FIRST
    return Cosigned.GROWN if new.size > known.size else Cosigned.UNCHANGED


def _size(size: int, reason: Refused) -> Reply:
    return Reply(409, b"%d\n" % size, reason, SIZE_TYPE)


_ANOTHER_HISTORY = (Refused.FORK, Refused.PROOF)
"""What is another history, or may be one, is worth keeping."""
