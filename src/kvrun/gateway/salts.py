"""Salt and generation of each session, as the instance daemon gives them out.

An answer is kept until the daemon says that it no longer holds. A daemon that does not answer
costs the caller the cache, never the answer: such a request goes on with a random salt and
without a claim, so nothing is stored, loaded or reused for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from kvrun.errors import KvrunError

RETRY_AFTER_FAILURE_S = 0.5
# Refusals that are the daemon's answer rather than its absence.
_ANSWERS = frozenset({403, 429})
# One session opens again in a moment: no reason to leave the daemon alone.
_BEING_ERASED = 409


class SessionGrant(Protocol):
    """What the daemon says about an open session."""

    @property
    def salt(self) -> str:
        """The prefix-cache salt: 43 characters of base64url."""

    @property
    def generation(self) -> int:
        """0 for a grant that holds for one request only (stateless deployments)."""


class SessionGranter(Protocol):
    """The daemon, as far as the gateway needs it."""

    @property
    def workspace(self) -> str:
        """The workspace that it serves."""

    @property
    def deployment(self) -> str:
        """The deployment that it serves."""

    async def open_session(self, tenant: str, session: str) -> SessionGrant:
        """Raises a KvrunError of status 429 beyond the tenant's limit of sessions."""


class ReadyClaim(msgspec.Struct, frozen=True):
    """A signed claim for one engine request that has not come yet, with the request's id."""

    token: str
    request_id: str
    key_id: str
    issued_at: int


class OpenSession:
    """A session's grant. ``ready`` is a claim signed ahead for it; it ends with the grant."""

    __slots__ = ("asked", "generation", "ready", "salt")

    def __init__(self, grant: SessionGrant) -> None:
        self.salt = grant.salt
        self.generation = grant.generation
        self.ready: ReadyClaim | None = None
        self.asked = False


class SessionDirectory:
    """Grants by (tenant, session), at most ``capacity`` of them, least recently used go first."""

    def __init__(
        self,
        granter: SessionGranter,
        *,
        capacity: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._granter = granter
        self._capacity = capacity
        self._timeout_s = timeout_s
        self._clock = clock
        self._grants: OrderedDict[tuple[str, str], OpenSession] = OrderedDict()
        self._opening: dict[tuple[str, str], asyncio.Task[OpenSession]] = {}
        self._quiet_until = float("-inf")

    @property
    def granter(self) -> SessionGranter:
        """Whom it asks."""
        return self._granter

    def cached(self, tenant: str, session: str) -> OpenSession | None:
        """The grant if it is at hand, without asking the daemon."""
        grant = self._grants.get((tenant, session))
        if grant is not None:
            self._grants.move_to_end((tenant, session))
        return grant

    async def grant(self, tenant: str, session: str) -> OpenSession | None:
        """The session's grant, or None while the daemon cannot be asked.

        Raises the daemon's own refusal (KvrunError of status 403 or 429).
        """
        key = (tenant, session)
        grant = self.cached(tenant, session)
        if grant is not None:
            return grant
        if self._clock() < self._quiet_until:
            return None
        task = self._opening.get(key)
        first = task is None
        if task is None:
            task = asyncio.ensure_future(self._open(key))
            task.add_done_callback(_mark_retrieved)
            self._opening[key] = task
        try:
            # Shielded: a client that leaves must not cancel what others wait for.
            grant = await asyncio.wait_for(asyncio.shield(task), self._timeout_s)
            if grant.generation or first:
                return grant
            asked = self._granter.open_session(*key)
            return OpenSession(await asyncio.wait_for(asked, self._timeout_s))
        except asyncio.CancelledError:
            if task.cancelled():
                return None
            raise
        except KvrunError as error:
            if error.status in _ANSWERS:
                raise
            if error.status == _BEING_ERASED:
                return None
        except Exception:  # noqa: S110  whatever the daemon's absence looks like, it is a miss
            pass
        self._quiet_until = self._clock() + RETRY_AFTER_FAILURE_S
        return None

    def invalidate(self, tenant: str, session: str) -> None:
        """The daemon says that the session's grant no longer holds.

        An empty session means every session of the tenant, an empty tenant every session.
        """
        if not tenant:
            self.invalidate_all()
            return
        if not session:
            for key in [key for key in self._grants if key[0] == tenant]:
                del self._grants[key]
            for key in [key for key in self._opening if key[0] == tenant]:
                del self._opening[key]
            return
        # An answer that is under way may be the old one: it is used once but not kept.
        self._grants.pop((tenant, session), None)
        self._opening.pop((tenant, session), None)

    def invalidate_all(self) -> None:
        """Forget everything: after a lost connection, pushes may have been missed."""
        self._grants.clear()
        self._opening.clear()

    def __len__(self) -> int:
        return len(self._grants)

    async def _open(self, key: tuple[str, str]) -> OpenSession:
        task = asyncio.current_task()
        try:
            grant = OpenSession(await self._granter.open_session(*key))
            if self._opening.get(key) is task and grant.generation:
                self._grants[key] = grant
                while len(self._grants) > self._capacity:
                    self._grants.popitem(last=False)
            return grant
        finally:
            if self._opening.get(key) is task:
                del self._opening[key]


def _mark_retrieved(task: asyncio.Task[OpenSession]) -> None:
    """Every waiter may have timed out: asyncio would then warn of an error nobody looked at."""
    if not task.cancelled():
        task.exception()
