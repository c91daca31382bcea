"""What sessions hold on disk that left the tier already and is being removed."""

from typing import NamedTuple

Key = tuple[str, str]


class Outgoing(NamedTuple):
    """Blocks of a session whose files are not removed yet, and their sealed bytes."""

    blocks: int = 0
    bytes: int = 0


class OutgoingSessions:
    """By (tenant_ref, session_ref). Not thread-safe: the disk tier holds its lock.

    ``unmoved`` are those whose folder is to go and was not moved aside yet.
    """

    def __init__(self) -> None:
        self._sessions: dict[Key, Outgoing] = {}
        self._tenants: dict[str, int] = {}
        self.unmoved: set[Key] = set()
        self.blocks = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> set[Key]:
        """Every session that has something, or may have."""
        return self.unmoved.union(self._sessions)

    def of(self, key: Key) -> Outgoing:
        """What a session has."""
        return self._sessions.get(key, Outgoing())

    def add(self, key: Key, more: Outgoing) -> None:
        """So much more of a session is to be removed."""
        had = self.of(key)
        self.set(key, Outgoing(had.blocks + more.blocks, had.bytes + more.bytes))

    def set(self, key: Key, left: Outgoing) -> None:
        """So much of a session is still to be removed."""
        had = self._sessions.pop(key, Outgoing())
        if any(left):
            self._sessions[key] = left
        self.blocks += left.blocks - had.blocks
        self.bytes += left.bytes - had.bytes
        of_tenant = self._tenants.pop(key[0], 0) + left.bytes - had.bytes
        if of_tenant:
            self._tenants[key[0]] = of_tenant

    def forget(self, key: Key) -> None:
        """Nothing of a session is to be removed any more."""
        self.set(key, Outgoing())
        self.unmoved.discard(key)

    def bytes_of(self, tenant_ref: str) -> int:
        """What all sessions of a tenant have together."""
        return self._tenants.get(tenant_ref, 0)
