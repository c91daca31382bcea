"""The handles of one key service: one for each session in use, and an end for all of them."""

import weakref
from collections.abc import Callable

from kvrun.keys.keyring import Keyring
from kvrun.keys.lease import Lease
from kvrun.keys.lease_keeper import boottime
from kvrun.keys.ring_entries import SessionEntry
from kvrun.keys.session import HandleEnd, SessionKeys


class OpenHandles:
    """Makes handles and finds them again. Not thread-safe but for ``ready``."""

    def __init__(
        self, ring: Keyring, *, at_most: int, clock: Callable[[], float] = boottime
    ) -> None:
        self._ring = ring
        self._at_most = at_most
        self._clock = clock
        self.lease = Lease.unlimited()
        self._ready: dict[tuple[str, str], SessionKeys] = {}
        # Every handle that anyone still holds, so that a session never has two and a
        # destruction reaches all of them.
        self._alive: weakref.WeakValueDictionary[bytes, SessionKeys] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, name: tuple[str, str]) -> bool:
        return name in self._ready

    def ready(self, tenant: str, session: str) -> SessionKeys | None:
        """The session's handle if it is kept ready; from any thread, without a lock."""
        return self._ready.get((tenant, session))

    def of(self, entry: SessionEntry) -> SessionKeys:
        """The session's handle. Raises KeyUnavailableError when its slot does not open."""
        handle = self._alive.get(entry.key_id)
        if handle is None:
            with self._ring.opened(entry) as opened:
                handle = SessionKeys(opened, entry, self.lease, self._clock)
            self._alive[entry.key_id] = handle
        name = (handle.scope.tenant, handle.scope.session)
        if name not in self._ready:
            if len(self._ready) >= self._at_most:
                forget_least_used(self._ready)
            self._ready[name] = handle
        return handle

    def end(self, entry: SessionEntry) -> SessionKeys | None:
        """End the handle of a session whose key is being destroyed; the handle, if there is one."""
        handle = self._alive.pop(entry.key_id, None)
        if handle is not None:
            handle.end(HandleEnd.DESTROYED)
            self._ready.pop((handle.scope.tenant, handle.scope.session), None)
        return handle

    def end_all(self, why: HandleEnd) -> None:
        """End every handle that anyone holds; their keys live on."""
        self._ready.clear()
        for handle in list(self._alive.values()):
            handle.end(why)
        self._alive.clear()


def forget_least_used(ready: dict[tuple[str, str], SessionKeys]) -> None:
    """Let an eighth go, least recently used first: that keeps most calls free of bookkeeping."""
    by_use = sorted(ready.items(), key=lambda item: item[1].last_used_at)
    for name, _ in by_use[: max(1, len(by_use) // 8)]:
        del ready[name]
