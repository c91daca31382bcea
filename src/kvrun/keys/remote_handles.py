"""The handles of keys that a service lent: one for each session in use, and an end for all."""

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvrun.keys.hierarchy import SessionScope
from kvrun.keys.lease import Lease
from kvrun.keys.open_handles import forget_least_used
from kvrun.keys.records import KEY_BYTES
from kvrun.keys.ring_entries import OpenedSession
from kvrun.keys.session import HandleEnd, SessionKeys
from kvrun.keys.wire import Lent


@dataclass(slots=True)
class RemoteUse:
    """The readable part of keys that were lent; ``told`` is the last use that the service knows.

    Times are seconds since 1970.
    """

    key_id: bytes
    generation: int
    created: float
    used: float
    told: float


class RemoteHandles:
    """Thread-safe; ``ready`` takes no lock. ``at_most`` are kept ready."""

    def __init__(self, *, at_most: int, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds of CLOCK_BOOTTIME."""
        self.lease = Lease(float("-inf"))
        self._at_most = at_most
        self._clock = clock
        self._lock = threading.Lock()
        self._ready: dict[tuple[str, str], SessionKeys] = {}
        self._alive: weakref.WeakValueDictionary[bytes, SessionKeys] = weakref.WeakValueDictionary()
        self._uses: dict[bytes, RemoteUse] = {}

    def ready(self, tenant: str, session: str) -> SessionKeys | None:
        """The session's handle if it is kept ready."""
        return self._ready.get((tenant, session))

    def key_ids(self) -> list[bytes]:
        """The keys of every handle that anyone holds."""
        with self._lock:
            return list(self._alive)

    def add(self, scope: SessionScope, lent: Lent, keys: memoryview) -> SessionKeys:
        """A handle over the three keys in ``keys``, which are not needed afterwards."""
        with self._lock:
            handle = self._alive.get(lent.key_id)
            if handle is None or handle.ended:
                use = RemoteUse(
                    lent.key_id, lent.generation, lent.created_at, lent.used_at, lent.used_at
                )
                parts = [keys[at * KEY_BYTES : (at + 1) * KEY_BYTES] for at in range(3)]
                opened = OpenedSession(scope, lent.tenant_ref, *parts)
                handle = SessionKeys(opened, use, self.lease, self._clock)
                self._alive[lent.key_id], self._uses[lent.key_id] = handle, use
            name = (scope.tenant, scope.session)
            if name not in self._ready and len(self._ready) >= self._at_most:
                forget_least_used(self._ready)
            self._ready[name] = handle
            return handle

    def end(self, key_ids: Iterable[bytes]) -> list[SessionKeys]:
        """End the handles of destroyed keys, whose states are cleansed with that; those it had."""
        ended = []
        with self._lock:
            for key_id in key_ids:
                self._uses.pop(key_id, None)
                handle = self._alive.pop(key_id, None)
                if handle is not None:
                    handle.end(HandleEnd.DESTROYED)
                    name = (handle.scope.tenant, handle.scope.session)
                    if self._ready.get(name) is handle:
                        del self._ready[name]
                    ended.append(handle)
        return ended

    def end_all(self, why: HandleEnd) -> None:
        """End every handle that anyone holds; their keys live on."""
        with self._lock:
            self._ready.clear()
            for handle in list(self._alive.values()):
                handle.end(why)
            self._alive.clear()
            self._uses.clear()

    def unsaid_uses(self) -> list[tuple[bytes, float]]:
        """Keys that were used since this was asked, with the time of their last use."""
        with self._lock:
            moved = [use for use in self._uses.values() if use.used > use.told]
            for use in moved:
                use.told = use.used
            self._uses = {key_id: u for key_id, u in self._uses.items() if key_id in self._alive}
            return [(use.key_id, use.used) for use in moved]
