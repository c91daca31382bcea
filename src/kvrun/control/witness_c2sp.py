"""A C2SP witness over HTTP, such as another kvrun: it cosigns what continues what it saw.

Source: https://c2sp.org/tlog-witness (the call) and https://c2sp.org/tlog-cosignature (the answer).
"""

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from kvrun.audit.checkpoint import Checkpoint, parse_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey, parse_note
from kvrun.control.witness_errors import (
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
)
from kvrun.control.witness_http import Answer, HttpLimits, post
from kvrun.control.witness_request import PATH, SIZE_TYPE, AddCheckpoint, parse_size

MAX_ANSWER_BYTES = 64 * 1024
FUTURE_TOLERANCE_S = 300.0


class C2spWitness:
    """The witness at ``url`` (its submission prefix), believed only under one of ``keys``."""

    def __init__(
        self,
        url: str,
        keys: Sequence[VerifierKey],
        *,
        limits: HttpLimits,
        now: Callable[[], float],
    ) -> None:
        self._url = url.rstrip("/")
        self._keys = [key for key in keys if key.algorithm == COSIGNATURE_V1]
        self._limits = limits
        self._now = now

    @property
    def name(self) -> str:
        """The address without its scheme."""
        parts = urlsplit(self._url)
        return f"{parts.netloc}{parts.path}"

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """See :class:`kvrun.control.witness.Witness`."""
        checkpoint = parse_checkpoint(parse_note(note).text)
        answer = self._ask(AddCheckpoint(old_size, tuple(proof), note))
        if answer.status == 409 and old_size != checkpoint.size:
            size = self._conflict(answer, old_size, checkpoint)
            if size != checkpoint.size:
                raise WitnessOutOfStepError(
                    f"{self.name} remembers {size} records, not {old_size}", size
                )
            # It has cosigned this size already, and the answer may have been lost.
            old_size, answer = size, self._ask(AddCheckpoint(size, (), note))
        if answer.status == 200:
            return self._cosignatures(answer, note)
        raise self._refusal(answer, old_size, checkpoint)

    def _ask(self, request: AddCheckpoint) -> Answer:
        return post(self._url + PATH, request.encode(), "text/plain; charset=utf-8", self._limits)

    def _conflict(self, answer: Answer, old_size: int, checkpoint: Checkpoint) -> int:
        size = _size_in(answer)
        if size is None or size == old_size:
            raise WitnessUnavailableError(
                f"{self.name} answered 409 without the size that it remembers"
            )
        if size > checkpoint.size:
            raise WitnessRefusedError(
                f"{self.name} says that it has seen {size} records of {checkpoint.origin}, "
                f"and this checkpoint covers {checkpoint.size}: the log may have been rolled back",
                evidence=answer.body,
            )
        return size

    def _cosignatures(self, answer: Answer, note: bytes) -> bytes:
        text = parse_note(note).text
        try:
            # An answer is signature lines only; with the note's text they form a note.
            items = parse_note(text + b"\n" + answer.body).signatures
        except NoteFormatError as error:
            raise WitnessUnavailableError(
                f"{self.name} answered with something else than cosignatures: {error.message}"
            ) from None
        latest = self._now() + FUTURE_TOLERANCE_S
        lines = b"".join(
            item.line()
            for item in items
            for key in self._keys
            if key.made(item)
            and key.verifies(text, item.signature)
            and int.from_bytes(item.signature[:8], "big") <= latest
        )
        if not lines:
            raise WitnessUnavailableError(
                f"{self.name} answered without a valid cosignature of a known key",
                hint="witness.keys_file holds the keys that count, one a line.",
            )
        return lines

    def _refusal(self, answer: Answer, old_size: int, checkpoint: Checkpoint) -> Exception:
        origin, size = checkpoint.origin, checkpoint.size
        evidence = answer.body
        if answer.status == 404:
            return WitnessUnavailableError(
                f"{self.name} does not know the log {origin}",
                hint="Give the log's verifier key to whoever runs the witness.",
            )
        if answer.status == 403:
            return WitnessRefusedError(
                f"{self.name} knows the log {origin} under another key than signed this checkpoint",
                evidence=evidence,
            )
        if answer.status == 409:
            return WitnessRefusedError(
                f"{self.name} says that it cosigned another checkpoint of {origin} at {size} "
                "records: the log may have been forked",
                evidence=evidence,
            )
        if answer.status == 422:
            return WitnessRefusedError(
                f"{self.name} says that {size} records of {origin} do not continue the {old_size} "
                "that it cosigned: the log may have been forked",
                evidence=evidence,
            )
        return WitnessUnavailableError(
            f"{self.name} answered with status {answer.status}: {_text(evidence)}"
        )


def _size_in(answer: Answer) -> int | None:
    if answer.media_type != SIZE_TYPE:
        return None
    try:
        return parse_size(answer.body.decode("ascii").removesuffix("\n"))
    except (UnicodeDecodeError, NoteFormatError):
        return None


def _text(body: bytes) -> str:
    """The start of an answer, safe to print."""
    return ascii(body[:120].decode("utf-8", "replace"))
