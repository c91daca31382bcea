"""Which keys there are, which an erasure reaches, and their destruction, asked of a key service."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from kvrun.keys.canary import KeyCanary
from kvrun.keys.daemon_state import DaemonState
from kvrun.keys.lease import MAX_LEASE_S
from kvrun.keys.listing import SessionPage, SessionsAsked, TenantPage, TenantsAsked
from kvrun.keys.root import RootFacts
from kvrun.keys.selection import Destruction, Selection
from kvrun.keys.wire import (
    Destroy,
    Done,
    EpochLives,
    Gone,
    ListedSessions,
    ListedTenants,
    ListSessions,
    ListTenants,
    Living,
    Message,
    Named,
    Names,
    Opened,
    Opens,
    Select,
    Selected,
    Settle,
    Settled,
)

Answered = TypeVar("Answered", bound=Message)
_SOON_S = 5.0
# For those that were lent keys, and for those that an earlier service lent them to.
_LEASES_S = 2 * MAX_LEASE_S


class Asking(Protocol):
    """Who asks the service, and holds keys of it."""

    @property
    def root_facts(self) -> RootFacts:
        """What the root is."""
        ...

    def ask(
        self, make: Callable[[int], Message], answer: type[Answered], *, within_s: float = ...
    ) -> Answered:
        """The answer to a request."""
        ...

    def let_go(self, key_ids: Collection[str]) -> None:
        """End the handles of these keys."""
        ...


class RemoteSelection:
    """As :class:`kvrun.keys.selection.KeySelection`, through the service."""

    def __init__(self, keys: Asking) -> None:
        self._keys = keys

    def select(self, tenant_ids: Collection[str] | None, session: str | None) -> Selection:
        """See KeySelection."""
        tenants = None if tenant_ids is None else sorted(tenant_ids)
        found = self._keys.ask(lambda call: Select(call, tenants, session), Selected)
        return Selection(tuple(found.keys), tuple(found.canaries), found.epoch)

    def ids_of(self, refs: Collection[str]) -> frozenset[str]:
        """See KeySelection."""
        return frozenset(self._keys.ask(lambda call: Named(call, sorted(refs)), Names).names)

    def living(self, key_ids: Collection[str]) -> list[str]:
        """See KeySelection."""
        return self._keys.ask(lambda call: Living(call, list(key_ids)), Names).names

    def destroy(
        self, key_ids: Collection[str], *, erasure: str = "", owners: Collection[bytes] = ()
    ) -> Destruction:
        """See KeySelecting."""
        self._keys.let_go(key_ids)
        ids, pages = list(key_ids), list(owners)
        gone = self._keys.ask(lambda call: Destroy(call, erasure, ids, pages), Gone)
        self._keys.let_go([*key_ids, *(key.key_id for key in gone.keys)])
        return Destruction(tuple(gone.keys), tuple(gone.told), shared=True)

    def settle(
        self, erasure: str, daemons: Sequence[str], *, pages_within_s: float | None
    ) -> list[DaemonState]:
        """See KeySelecting."""
        wait_s = _SOON_S if pages_within_s is None else pages_within_s + _LEASES_S
        found = self._keys.ask(
            lambda call: Settle(call, erasure, list(daemons), pages_within_s),
            Settled,
            within_s=wait_s,
        )
        return found.states

    def opens(self, canaries: Sequence[KeyCanary]) -> list[KeyCanary]:
        """See KeySelection."""
        return self._keys.ask(lambda call: Opens(call, list(canaries)), Opened).canaries

    def epoch_lives(self, epoch: int) -> bool:
        """See KeySelection."""
        return self._keys.ask(lambda call: EpochLives(call, epoch), Done).value

    def root(self) -> RootFacts:
        """See KeySelection."""
        return self._keys.root_facts


class RemoteListing:
    """As :class:`kvrun.keys.listing.KeyListing`, through the service."""

    def __init__(self, keys: Asking) -> None:
        self._keys = keys

    def tenants(self, asked: TenantsAsked) -> TenantPage:
        """See SessionListing."""
        return self._keys.ask(lambda call: ListTenants(call, asked), ListedTenants).page

    def sessions(self, asked: SessionsAsked) -> SessionPage:
        """See SessionListing."""
        return self._keys.ask(lambda call: ListSessions(call, asked), ListedSessions).page
