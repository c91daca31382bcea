"""What an instance works with for keys, whoever has them: this process or a key service."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from kvrun.keys.canary import KeyCanary
from kvrun.keys.daemon_state import DaemonState
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.listing import SessionListing
from kvrun.keys.locked import Protection
from kvrun.keys.root import RootFacts
from kvrun.keys.selection import Destruction, Selection
from kvrun.keys.session import SessionKeys, TakenKeys


class KeySelecting(Protocol):
    """What erasures need: see :class:`kvrun.keys.selection.KeySelection`."""

    def select(self, tenant_ids: Collection[str] | None, session: str | None) -> Selection:
        """The keys of tenants and of their sessions, or of a session of theirs; None: every key."""
        ...

    def ids_of(self, refs: Collection[str]) -> frozenset[str]:
        """The ids of those tenants, named by pseudonym, that have a key which opens."""
        ...

    def living(self, key_ids: Collection[str]) -> list[str]:
        """Those of the ids whose keys still exist."""
        ...

    def destroy(
        self, key_ids: Collection[str], *, erasure: str = "", owners: Collection[bytes] = ()
    ) -> Destruction:
        """Destroy those of the keys that exist; this process cannot use them when this returns.

        Other daemons are told to let go of them and to have engines zero the pages of ``owners``,
        where an ``erasure`` is named all of them; ``settle`` says what they answered.
        """
        ...

    def settle(
        self, erasure: str, daemons: Sequence[str], *, pages_within_s: float | None
    ) -> list[DaemonState]:
        """What these daemons, told of an erasure, said.

        Returns once no other process can use its keys and each spoke of its pages or that time is
        over; with None at once. Raises KeysError where nobody can be asked.
        """
        ...

    def opens(self, canaries: Sequence[KeyCanary]) -> list[KeyCanary]:
        """Those of the copies that some key still opens; empty is the proof."""
        ...

    def epoch_lives(self, epoch: int) -> bool:
        """Whether the root still holds the epoch's key."""
        ...

    def root(self) -> RootFacts:
        """What the root is."""
        ...


class SessionKeySource(Protocol):
    """The keys of one deployment's sessions: see :class:`kvrun.keys.service.KeyService`.

    ``on_lease_end`` is told that no key may be used any more; ``on_taken(keys, owners, tell)`` of
    keys that were destroyed for somebody else, and calls ``tell`` when engines zeroed their pages
    and those of ``owners``; ``on_new_service`` is called before the keys of a service that was
    started anew are used.
    """

    on_lease_end: Callable[[str], None]
    on_taken: TakenKeys
    on_new_service: Callable[[], object]

    @property
    def selection(self) -> KeySelecting:
        """What erasures look at."""
        ...

    @property
    def listing(self) -> SessionListing:
        """Who has keys."""
        ...

    @property
    def claim(self) -> ClaimClass:
        """What a destroyed key may be said to be."""
        ...

    @property
    def root_facts(self) -> RootFacts:
        """What the root is."""
        ...

    @property
    def protection(self) -> Protection:
        """The weakest protection of key memory."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        ...

    @property
    def leased(self) -> bool:
        """Whether keys may be used now."""
        ...

    @property
    def lease_text(self) -> str:
        """The state of the lease, for people."""
        ...

    @property
    def recovery_text(self) -> str:
        """What opening the key folder cost, for people; empty where that is nothing."""
        ...

    @property
    def session_count(self) -> int:
        """Number of sessions with a key."""
        ...

    def acquire(self, tenant: str, session: str) -> SessionKeys:
        """The session's keys; created on first use."""
        ...

    def find(self, tenant: str, session: str) -> SessionKeys | None:
        """The session's keys if it has any that are not expired."""
        ...

    def rotate_epoch(self) -> int:
        """Put a new epoch key in the place of the live one; its number."""
        ...

    def rotate_root(self) -> None:
        """Put a new root key in the place of the root's."""
        ...

    def destroy_expired(self) -> list[DestroyedKey]:
        """Destroy what is idle or too old; also what was destroyed by use since."""
        ...

    def destroyed_by_use(self) -> list[DestroyedKey]:
        """What was destroyed by use since somebody asked."""
        ...

    def close(self) -> None:
        """End every handle and zero all keys in memory."""
        ...
