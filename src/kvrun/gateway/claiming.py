"""A session's claims, and the next one signed before its request comes.

Signing is the dearest step of a request. A conversation's next request follows its last one, so
from the second request of a session on the next claim is signed when that one is on its way to the
engine and the gateway waits. Such a claim differs in nothing but its age: it is for one engine
request, has an id and a nonce of its own, is given out once, and ends with the session's grant.
"""

import asyncio
from collections.abc import Callable

from kvrun.claims.claim import Claim, encode_base64url
from kvrun.claims.rotating import RotatingSigner
from kvrun.gateway.identity import Identity
from kvrun.gateway.salts import OpenSession, ReadyClaim, SessionGranter

NONCE_BYTES = 16
READY_SHARE = 10
"""A claim may wait for its request for a tenth of its life."""


class SessionClaims:
    """Signs claims for the daemon ``granter``. Use it from one event loop."""

    def __init__(
        self,
        granter: SessionGranter,
        signer: RotatingSigner,
        *,
        lifetime_s: int,
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        new_request_id: Callable[[], str],
    ) -> None:
        self._granter = granter
        self._signer = signer
        self._lifetime_s = lifetime_s
        self._now = now
        self._random_bytes = random_bytes
        self._new_request_id = new_request_id

    def sign(
        self, identity: Identity, opened: OpenSession, uses: int, request_id: str
    ) -> ReadyClaim:
        """A claim for this request. Raises ClaimError (malformed)."""
        issued_at = int(self._now())
        claim = Claim(
            workspace=self._granter.workspace,
            deployment=self._granter.deployment,
            tenant=identity.tenant,
            session=identity.session,
            generation=opened.generation,
            salt=opened.salt,
            request_id=request_id,
            nonce=encode_base64url(self._random_bytes(NONCE_BYTES)).decode(),
            uses=uses,
            issued_at=issued_at,
            expires_at=issued_at + self._lifetime_s,
        )
        return ReadyClaim(self._signer.sign(claim), request_id, self._signer.key_id, issued_at)

    def next(self, identity: Identity, opened: OpenSession, uses: int) -> ReadyClaim:
        """A claim that brings its request's id, signed ahead where that can be."""
        claim = self._take(opened) if uses == 1 else None
        if claim is None:
            claim = self.sign(identity, opened, uses, self._new_request_id())
        if opened.asked:
            # Its turn comes when this request has been sent on.
            asyncio.get_running_loop().call_soon(self._sign_ahead, identity, opened)
        opened.asked = True
        return claim

    def _take(self, opened: OpenSession) -> ReadyClaim | None:
        """The claim that waits, unless it is too old or of a key that was replaced."""
        ready, opened.ready = opened.ready, None
        if ready is None or ready.key_id != self._signer.key_id:
            return None
        waited = int(self._now()) - ready.issued_at
        return ready if 0 <= waited <= self._lifetime_s // READY_SHARE else None

    def _sign_ahead(self, identity: Identity, opened: OpenSession) -> None:
        if opened.ready is None:
            opened.ready = self.sign(identity, opened, 1, self._new_request_id())
