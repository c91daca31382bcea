"""Having engines let go of a canary's pages, so that a self-test sees what lies below them.

Only for the made-up users and sessions of a self-test: to anybody else it would be no harm but a
cold start, and still nobody should be able to ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec

from kvrun.erasure.targets import EngineScrubber
from kvrun.instance.admin import NotFoundError, UnknownOperationError
from kvrun.instance.protocol import page_owner
from kvrun.keys.source import SessionKeySource

CANARY_PREFIX = "kvrun-canary-"


class Released(msgspec.Struct, frozen=True):
    """Pages taken out of the engine's prefix cache and zeroed; ``confirmed`` by every engine."""

    evicted: int
    scrubbed: int
    confirmed: bool


class PageRelease:
    """The operation, on one instance's keys and engines."""

    def __init__(self, keys: SessionKeySource, scrubber: EngineScrubber) -> None:
        self._keys = keys
        self._scrubber = scrubber

    def release(self, arguments: Mapping[str, str]) -> Released:
        """Evict and zero the engine pages of one canary's session; its sealed blocks stay.

        Raises UnknownOperationError for a session that is no canary's, NotFoundError for one that
        has no key.
        """
        tenant, session = arguments.get("tenant", ""), arguments.get("session", "")
        if not session.startswith(CANARY_PREFIX):
            raise UnknownOperationError(
                "only the sessions of a self-test can be asked to let go of pages",
                hint=f"their ids begin with {CANARY_PREFIX}",
            )
        keys = self._keys.find(tenant, session)
        if keys is None:
            raise NotFoundError("the canary has no key, so nothing of it is anywhere")
        done = self._scrubber.scrub(
            secrets.randbits(60), [page_owner(keys.salt)], everything=False, engines=()
        )
        return Released(done.evicted, done.scrubbed, not done.unacknowledged and not done.held)
