"""RFC 3161 timestamps of a log's checkpoints, kept beside the notes that they are of.

An authority remembers nothing, so it finds no fork by itself: it says when a checkpoint was there.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from kvrun.audit.checkpoint import parse_checkpoint
from kvrun.audit.errors import TimestampError
from kvrun.audit.note import parse_note
from kvrun.audit.timestamp import (
    REQUEST_TYPE,
    SUFFIX,
    make_request,
    verify_token,
)
from kvrun.control.remembered import log_folder
from kvrun.control.witness_errors import WitnessRefusedError, WitnessUnavailableError
from kvrun.control.witness_http import HttpLimits, post
from kvrun.durable import replace_private_file

CLOCK_TOLERANCE_S = 300.0


class TimestampWitness:
    """The authority at ``url``. Each log's notes and tokens go to a folder of their own.

    ``authorities``: PEM certificates that its tokens must lead to. A log is timestamped at most
    every ``every_s`` seconds; ``now``: seconds since 1970.
    """

    def __init__(
        self,
        url: str,
        authorities: bytes,
        folder: Path,
        *,
        every_s: float,
        limits: HttpLimits,
        now: Callable[[], float],
    ) -> None:
        self._url = url
        self._authorities = authorities
        self._folder = folder
        self._every_s = every_s
        self._limits = limits
        self._now = now

    @property
    def name(self) -> str:
        """Whose timestamps they are."""
        return f"timestamps of {urlsplit(self._url).netloc}"

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """See :class:`kvrun.control.witness.Witness`; the evidence is the token that is kept."""
        checkpoint = parse_checkpoint(parse_note(note).text)
        folder = self._folder / log_folder(checkpoint.origin)
        path = folder / f"checkpoint-{checkpoint.size:016d}"
        try:
            if path.with_suffix(SUFFIX).exists():
                _refuse_another(path.read_bytes(), note, self.name)
                return b""
            if not self._is_due(folder):
                return b""
            token = self._token(note)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(path, note)
            replace_private_file(path.with_suffix(SUFFIX), token)
            os.utime(path.with_suffix(SUFFIX), (self._now(), self._now()))
        except OSError as error:
            raise WitnessUnavailableError(
                f"{self.name}: the token cannot be kept in {folder}: {error.strerror}"
            ) from None
        return b""

    def _token(self, note: bytes) -> bytes:
        request = make_request(note)
        answer = post(self._url, request.body, REQUEST_TYPE, self._limits)
        if answer.status != 200:
            raise WitnessUnavailableError(f"{self.name}: it answered with status {answer.status}")
        try:
            time = verify_token(note, answer.body, self._authorities, nonce=request.nonce)
        except TimestampError as error:
            raise WitnessUnavailableError(f"{self.name}: {error.message}") from None
        if abs(time - self._now()) > CLOCK_TOLERANCE_S:
            raise WitnessUnavailableError(
                f"{self.name}: its clock and this machine's are {abs(time - self._now()):.0f} s "
                "apart"
            )
        return answer.body

    def _is_due(self, folder: Path) -> bool:
        """Whether the newest token of a log is old enough; its file's time says when it came."""
        newest = max((path.name for path in folder.glob(f"*{SUFFIX}")), default=None)
        if newest is None:
            return True
        age = self._now() - (folder / newest).stat().st_mtime
        return not 0 <= age < self._every_s


def _refuse_another(kept: bytes, note: bytes, name: str) -> None:
    """Refuse another tree of a size that was timestamped before."""
    known, new = (parse_checkpoint(parse_note(item).text) for item in (kept, note))
    if known.root != new.root:
        raise WitnessRefusedError(
            f"{name}: another checkpoint of {new.origin} at {new.size} records was timestamped: "
            "the log may have been forked",
            evidence=kept,
        )
