"""Which keys an erasure reaches and their destruction, asked of a key service."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from kvrun.keys.canary import KeyCanary
from kvrun.keys.root import RootFacts
from kvrun.keys.selection import Destruction, Selection
from kvrun.keys.wire import (
    Destroy,
    Done,
    EpochLives,
    Gone,
    Living,
    Message,
    Named,
    Names,
    Opened,
    Opens,
    Select,
    Selected,
)

Answered = TypeVar("Answered", bound=Message)


class Asking(Protocol):
    """Who asks the service, and holds keys of it."""

    @property
    def root_facts(self) -> RootFacts:
        """What the root is."""
        ...

    def ask(self, make: Callable[[int], Message], answer: type[Answered]) -> Answered:
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

    def destroy(self, key_ids: Collection[str]) -> Destruction:
        """See KeySelection. Waits until every daemon let go of them, or its lease is over."""
        self._keys.let_go(key_ids)
        gone = self._keys.ask(lambda call: Destroy(call, list(key_ids)), Gone)
        self._keys.let_go([*key_ids, *(key.key_id for key in gone.keys)])
        return Destruction(tuple(gone.keys), tuple(gone.unconfirmed), shared=True)

    def opens(self, canaries: Sequence[KeyCanary]) -> list[KeyCanary]:
        """See KeySelection."""
        return self._keys.ask(lambda call: Opens(call, list(canaries)), Opened).canaries

    def epoch_lives(self, epoch: int) -> bool:
        """See KeySelection."""
        return self._keys.ask(lambda call: EpochLives(call, epoch), Done).value

    def root(self) -> RootFacts:
        """See KeySelection."""
        return self._keys.root_facts
