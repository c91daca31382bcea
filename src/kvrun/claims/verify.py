"""Checking claims: signature, time and deployment, and how often one claim may be used."""

import heapq
from collections.abc import Callable, Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.claims.claim import (
    MAX_TOKEN_CHARS,
    TOKEN_PREFIX,
    Claim,
    ClaimError,
    ClaimFault,
    decode_base64url,
    decode_payload,
    key_id_of,
    malformed,
)

DEFAULT_CLOCK_SKEW_S = 5
DEFAULT_REPLAY_CAPACITY = 65_536


class ClaimVerifier:
    """Checks tokens for one (workspace, deployment) against a set of public keys.

    ``now`` returns seconds since 1970. ``clock_skew_s`` is how far in the future a claim may have
    been issued; it does not prolong one. ``workspace`` None leaves the workspace unchecked.
    """

    def __init__(
        self,
        public_keys: Iterable[Ed25519PublicKey],
        deployment: str,
        now: Callable[[], float],
        *,
        workspace: str | None = None,
        clock_skew_s: float = DEFAULT_CLOCK_SKEW_S,
    ) -> None:
        # Replaced whole, never changed, so that threads may look meanwhile. An id that ended stays.
        self._keys = {key_id_of(key): key for key in public_keys}
        self._ends: dict[str, float] = {}
        self._deployment = deployment
        self._workspace = workspace
        self._now = now
        self._clock_skew_s = clock_skew_s

    def believed(self) -> dict[str, tuple[Ed25519PublicKey, float | None]]:
        """The keys whose claims are believed now, by id, each with the time at which it ends."""
        return {
            key_id: (key, self._ends.get(key_id))
            for key_id, key in self._keys.items()
            if not self._ended(key_id)
        }

    def add(self, key: Ed25519PublicKey) -> bool:
        """Believe another key's claims; False for one that was ended before."""
        key_id = key_id_of(key)
        if key_id in self._ends:
            return False
        self._keys = {**self._keys, key_id: key}
        return True

    def end(self, key_ids: Iterable[str], at: float) -> None:
        """Believe claims of these keys only until ``at``, or earlier if that was said before."""
        known = {key_id: at for key_id in key_ids if key_id in self._keys}
        self._ends = {k: min(at, self._ends.get(k, at)) for k, at in known.items()} | {
            k: at for k, at in self._ends.items() if k not in known
        }

    def verify(self, token: str) -> Claim:
        """The claim in a token that may be believed now; otherwise raises ClaimError."""
        if len(token) > MAX_TOKEN_CHARS:
            raise malformed(f"the claim is longer than {MAX_TOKEN_CHARS} characters")
        parts = token.split(".")
        if len(parts) != 4 or parts[0] != TOKEN_PREFIX:
            raise malformed(
                f"the claim is not of the form {TOKEN_PREFIX}.<key id>.<payload>.<signature>"
            )
        _, key_id, encoded_payload, encoded_signature = parts
        payload = decode_base64url(encoded_payload)
        signature = decode_base64url(encoded_signature)
        if payload is None or signature is None:
            raise malformed("the claim's payload or signature is not canonical base64url")
        key = self._keys.get(key_id)
        if key is None or self._ended(key_id):
            raise ClaimError(ClaimFault.UNKNOWN_KEY, "the claim was signed with an unknown key")
        signed = token[: -len(encoded_signature) - 1].encode("ascii")
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            raise ClaimError(
                ClaimFault.BAD_SIGNATURE, "the claim's signature does not verify"
            ) from None
        claim = decode_payload(payload)
        self._check_place_and_time(claim)
        return claim

    def _ended(self, key_id: str) -> bool:
        return self._now() >= self._ends.get(key_id, float("inf"))

    def _check_place_and_time(self, claim: Claim) -> None:
        if claim.deployment != self._deployment:
            raise ClaimError(ClaimFault.WRONG_DEPLOYMENT, "the claim is for another deployment")
        if self._workspace is not None and claim.workspace != self._workspace:
            raise ClaimError(ClaimFault.WRONG_DEPLOYMENT, "the claim is for another workspace")
        now = self._now()
        if now >= claim.expires_at:
            raise ClaimError(
                ClaimFault.EXPIRED, f"the claim expired {int(now - claim.expires_at)} s ago"
            )
        if claim.issued_at > now + self._clock_skew_s:
            raise ClaimError(
                ClaimFault.NOT_YET_VALID,
                f"the claim is valid only in {int(claim.issued_at - now)} s",
                hint="Set the clocks of the gateway's and the instance's machines right.",
            )


class ReplayWindow:
    """Counts how often each claim was used, until it expires.

    Holds at most ``capacity`` live claims. Beyond that new claims are refused, never old ones
    forgotten: a refused claim costs a cache miss, a forgotten one would allow a replay. Not
    thread-safe: use it from one thread.
    """

    def __init__(self, capacity: int = DEFAULT_REPLAY_CAPACITY) -> None:
        self._capacity = capacity
        self._uses_left: dict[str, int] = {}
        self._by_expiry: list[tuple[int, str]] = []

    def admit(self, claim: Claim, now: float) -> bool:
        """Use the claim once; False where it is used up or expired, or the window is full."""
        self._forget_expired(now)
        if now >= claim.expires_at:
            return False
        left = self._uses_left.get(claim.nonce)
        if left is None:
            if len(self._uses_left) >= self._capacity:
                return False
            heapq.heappush(self._by_expiry, (claim.expires_at, claim.nonce))
            left = claim.uses
        if left == 0:
            return False
        self._uses_left[claim.nonce] = left - 1
        return True

    def __len__(self) -> int:
        return len(self._uses_left)

    def _forget_expired(self, now: float) -> None:
        while self._by_expiry and self._by_expiry[0][0] <= now:
            _, nonce = heapq.heappop(self._by_expiry)
            del self._uses_left[nonce]
