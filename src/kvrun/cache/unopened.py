"""Sessions on disk that nobody asked for yet: how much each holds and when it was last used."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

Key = tuple[str, str]


@dataclass(slots=True)
class _Unopened:
    bytes: int
    used: float


class UnopenedSessions:
    """By (tenant_ref, session_ref). Not thread-safe: the disk tier holds its lock."""

    def __init__(self) -> None:
        self._sessions: dict[Key, _Unopened] = {}
        self._tenants: dict[str, int] = {}
        self._by_use: list[tuple[float, Key]] = []

    def add(self, key: Key, size: int, used: float) -> None:
        """A session holds ``size`` bytes and was last used at ``used``, seconds since 1970."""
        self._sessions[key] = _Unopened(size, used)
        self._count(key, size)
        heappush(self._by_use, (used, key))

    def pop(self, key: Key) -> int:
        """The session is opened or gone; the bytes that it was said to hold, 0 if unknown."""
        found = self._sessions.pop(key, None)
        if found is None:
            return 0
        self._count(key, -found.bytes)
        if len(self._by_use) > 64 + 2 * len(self._sessions):
            self._by_use = [(entry.used, key) for key, entry in self._sessions.items()]
            heapify(self._by_use)
        return found.bytes

    def shrink(self, key: Key, size: int, used: float) -> bool:
        """``size`` bytes of a session go, and what stays was used at ``used``; False if unknown."""
        found = self._sessions.get(key)
        if found is None:
            return False
        found.bytes -= size
        found.used = max(found.used, used)
        self._count(key, -size)
        return True

    def keys(self) -> list[Key]:
        """Every session."""
        return list(self._sessions)

    def bytes_of(self, tenant_ref: str) -> int:
        """What all unopened sessions of a tenant hold."""
        return self._tenants.get(tenant_ref, 0)

    def oldest(self) -> Key | None:
        """The session that was used longest ago."""
        heap = self._by_use
        while heap:
            used, key = heap[0]
            found = self._sessions.get(key)
            if found is not None and found.used == used:
                return key
            heappop(heap)
            if found is not None and found.used > used:
                heappush(heap, (found.used, key))
        return None

    def oldest_of(self, tenant_ref: str) -> Key | None:
        """The session of a tenant that was used longest ago."""
        mine = [key for key in self._sessions if key[0] == tenant_ref]
        return min(mine, key=lambda key: self._sessions[key].used, default=None)

    def _count(self, key: Key, size: int) -> None:
        total = self._tenants.get(key[0], 0) + size
        if total:
            self._tenants[key[0]] = total
        else:
            self._tenants.pop(key[0], None)
