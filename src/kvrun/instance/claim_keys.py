"""Which keys' claims the daemon believes, and replacing them while gateways and engine run."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.claims.claim import MAX_LIFETIME_S, key_id_of
from kvrun.claims.rotating import is_introduced
from kvrun.claims.verify import ClaimVerifier
from kvrun.errors import KvrunError
from kvrun.instance.claim_messages import ClaimKey, ClaimKeyTaken, RenewClaimKey
from kvrun.instance.journal import Journal

MAX_BELIEVED = 64
_ANSWER_S = 10.0
_LOOK_EVERY_S = 0.1
_MAX_REPLACED = 1024
_log = logging.getLogger(__name__)


class ClaimKeyError(KvrunError):
    """Claim keys cannot be replaced now."""

    exit_code = 2
    status = 409


class ClaimKeyFacts(msgspec.Struct, frozen=True):
    """A claim key. ``until``: seconds since 1970 at which it ends; None while it is in use."""

    id: str
    until: float | None


class ClaimKeysRotated(msgspec.Struct, frozen=True):
    """The new keys' ids, of how many connected gateways, and how long the earlier ones go on."""

    keys: list[str]
    gateways: int
    overlap_s: int


class ClaimKeys:
    """The claim keys of one daemon. Thread-safe.

    ``launch_keys`` (32 raw bytes each) may introduce others. ``overlap_s``: how long claims of a
    replaced key are believed. ``ask_gateways`` sends to every connected gateway; what it returns
    says how many of them are connected still.
    """

    def __init__(
        self,
        verifier: ClaimVerifier,
        launch_keys: Mapping[str, bytes],
        journal: Journal,
        *,
        now: Callable[[], float],
        overlap_s: int,
    ) -> None:
        self.ask_gateways: Callable[[RenewClaimKey], Callable[[], int]] = lambda _: lambda: 0
        self._verifier = verifier
        self._launch_keys = {
            key_id: Ed25519PublicKey.from_public_bytes(raw) for key_id, raw in launch_keys.items()
        }
        self._journal = journal
        self._now = now
        self._overlap_s = overlap_s
        self._changed = threading.Condition()
        self._calls = itertools.count(1)
        self._overlaps: dict[int, int] = {}
        self._answers: dict[int, list[ClaimKeyTaken]] = {}

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the admin service."""
        return {"claim_keys": lambda _: self.facts(), "rotate_claim": self.rotate}

    def believed(self) -> dict[str, bytes]:
        """The keys whose claims are believed now, by id."""
        found = self._verifier.believed().items()
        return {key_id: key.public_bytes_raw() for key_id, (key, _) in found}

    def facts(self) -> list[ClaimKeyFacts]:
        """The same, with when each ends."""
        found = self._verifier.believed().items()
        return [ClaimKeyFacts(key_id, until) for key_id, (_, until) in found]

    def take(self, message: ClaimKey) -> ClaimKeyTaken:
        """A gateway's new key: believe it, and its earlier ones only for a while more."""
        with self._changed:
            answer = self._taken(message)
            if answer.reason:
                _log.warning("a gateway's claim key was refused: %s", answer.reason)
            else:
                self._journal.key_rotated("claim")
            if message.call in self._answers:
                self._answers[message.call].append(answer)
                self._changed.notify_all()
        return answer

    def rotate(self, arguments: Mapping[str, str]) -> ClaimKeysRotated:
        """Have every connected gateway make a new key; returns when those are believed.

        With an overlap of 0 what a gateway signs in the next moment may still be refused.

        Raises ClaimKeyError where none is connected, or one does not answer in time.
        """
        overlap_s = _seconds(arguments.get("overlap_s", ""), self._overlap_s)
        with self._changed:
            call = next(self._calls)
            answers = self._answers[call] = []
            self._overlaps[call] = overlap_s
            try:
                asked = self.ask_gateways(RenewClaimKey(call))
                if not asked():
                    raise ClaimKeyError(
                        "no gateway is connected that could make a new claim key",
                        hint="A gateway that starts gets a key of its launch.",
                    )
                deadline = time.monotonic() + _ANSWER_S
                while len(answers) < asked() and time.monotonic() < deadline:
                    # One may go away without an answer.
                    self._changed.wait(_LOOK_EVERY_S)
                gateways = max(asked(), len(answers))
            finally:
                del self._answers[call], self._overlaps[call]
            keys = [answer.key_id for answer in answers if not answer.reason]
        if len(keys) < gateways or not keys:
            said = "; ".join({answer.reason for answer in answers if answer.reason})
            raise ClaimKeyError(
                f"{len(keys)} of {gateways} gateways have a new claim key"
                + (f": {said}" if said else f"; the others did not answer in {_ANSWER_S:.0f} s"),
                hint="The keys before end all the same. Ask again, or restart the gateway.",
            )
        return ClaimKeysRotated(keys, gateways, overlap_s)

    def _taken(self, message: ClaimKey) -> ClaimKeyTaken:
        def refused(reason: str) -> ClaimKeyTaken:
            return ClaimKeyTaken(message.call, "", reason)

        launch_key = self._launch_keys.get(message.introduced_by)
        if launch_key is None:
            return refused("it is introduced by a key that is not of this launch")
        if len(message.public_key) != 32 or len(message.replaces) > _MAX_REPLACED:
            return refused("it is malformed")
        if not is_introduced(message.public_key, message.signature, launch_key):
            return refused("its introduction is not signed")
        if len(self._verifier.believed()) >= MAX_BELIEVED:
            return refused(f"{MAX_BELIEVED} claim keys are believed already")
        key = Ed25519PublicKey.from_public_bytes(message.public_key)
        key_id = key_id_of(key)
        if not self._verifier.add(key):
            return refused("it was in use before")
        overlap_s = self._overlaps.get(message.call, self._overlap_s)
        ended = [replaced for replaced in message.replaces if replaced != key_id]
        self._verifier.end(ended, self._now() + overlap_s)
        return ClaimKeyTaken(message.call, key_id, "")


def _seconds(text: str, otherwise: int) -> int:
    if not text:
        return otherwise
    if not text.isdecimal() or int(text) > MAX_LIFETIME_S:
        raise ClaimKeyError(
            f"claim keys overlap for 0 to {MAX_LIFETIME_S} seconds, not {text[:20]}"
        )
    return int(text)
