"""Having a canary's pages and blocks let go of, so that a self-test sees what lies below them.

Only for the made-up users and sessions of a self-test: to anybody else it would be no harm but a
cold start, and still nobody should be able to ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec

from kvrun.cache.events import Tier
from kvrun.cache.placement import Basis
from kvrun.cache.store import CacheStore
from kvrun.erasure.targets import EngineScrubber
from kvrun.instance.admin import NotFoundError, UnknownOperationError
from kvrun.instance.protocol import page_owner
from kvrun.keys.session import SessionKeys
from kvrun.keys.source import SessionKeySource

CANARY_PREFIX = "kvrun-canary-"
REASON = "isolation self-test"
_ABOVE = {
    "memory": (),
    "disk": (Tier.MEMORY,),
    "object": (Tier.MEMORY, Tier.DISK),
}
"""The tiers in which a block is found before it is looked for in this one."""


class ReleasedPages(msgspec.Struct, frozen=True):
    """Pages taken out of the engine's prefix cache and zeroed; ``confirmed`` by every engine."""

    evicted: int
    scrubbed: int
    confirmed: bool


class Lifted(msgspec.Struct, frozen=True):
    """How many sealed blocks of a canary left the tiers above the one that was asked for."""

    blocks: int


class CanaryRelease:
    """The operations, on one instance's keys, engines and cache."""

    def __init__(self, keys: SessionKeySource, scrubber: EngineScrubber, cache: CacheStore) -> None:
        self._keys = keys
        self._scrubber = scrubber
        self._cache = cache

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name."""
        return {"release_pages": self.release_pages, "release_above": self.release_above}

    def release_pages(self, arguments: Mapping[str, str]) -> ReleasedPages:
        """Evict and zero the engine pages of one canary's session; its sealed blocks stay.

        Raises UnknownOperationError for a session that is no canary's, NotFoundError for one that
        has no key.
        """
        keys = self._canary(arguments)
        done = self._scrubber.scrub(
            secrets.randbits(60), [page_owner(keys.salt)], everything=False, engines=()
        )
        return ReleasedPages(done.evicted, done.scrubbed, not done.unacknowledged and not done.held)

    def release_above(self, arguments: Mapping[str, str]) -> Lifted:
        """Write what waits, then take one canary's blocks out of every tier above ``tier``.

        What it has in that tier and below stays, and so does everybody else's. Raises as
        ``release_pages``, and UnknownOperationError for a tier that is none.
        """
        above = _ABOVE.get(arguments.get("tier", ""))
        if above is None:
            raise UnknownOperationError(
                f"there is no tier {arguments.get('tier', '')[:40]!r}",
                hint=f"tiers are {', '.join(_ABOVE)}",
            )
        keys = self._canary(arguments)
        self._cache.flush()
        why = dict.fromkeys(above, Basis(REASON))
        left = self._cache.leave(keys.tenant_ref, keys.session_ref, why)
        return Lifted(sum(blocks for blocks, _ in left.values()))

    def _canary(self, arguments: Mapping[str, str]) -> SessionKeys:
        tenant, session = arguments.get("tenant", ""), arguments.get("session", "")
        if not session.startswith(CANARY_PREFIX):
            raise UnknownOperationError(
                "only the sessions of a self-test can be asked to let go of what they have",
                hint=f"their ids begin with {CANARY_PREFIX}",
            )
        keys = self._keys.find(tenant, session)
        if keys is None:
            raise NotFoundError("the canary has no key, so nothing of it is anywhere")
        return keys
