"""What the command line may ask a running daemon about its keys, and have replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrun.instance.journal import Journal
from kvrun.keys.source import SessionKeySource


class KeyFacts(msgspec.Struct, frozen=True):
    """The key hierarchy's top, no secrets. ``claim`` is what a destroyed key may be called."""

    root_kind: str
    root_id: str
    root_reason: str
    claim: str
    epoch: int
    sessions: int
    lease: str


class KeyAccess:
    """Operations on the keys of one instance."""

    def __init__(self, keys: SessionKeySource, journal: Journal) -> None:
        self._keys = keys
        self._journal = journal

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the admin service."""
        return {
            "keys": lambda _: self.facts(),
            "rotate_epoch": lambda _: self._rotate("epoch", self._keys.rotate_epoch),
            "rotate_root": lambda _: self._rotate("root", self._keys.rotate_root),
        }

    def facts(self) -> KeyFacts:
        """What the keys are now."""
        keys, root = self._keys, self._keys.root_facts
        return KeyFacts(
            root_kind=root.kind,
            root_id=root.root_id.hex(),
            root_reason=root.reason,
            claim=root.claim.value,
            epoch=keys.epoch,
            sessions=keys.session_count,
            lease=keys.lease_text,
        )

    def _rotate(self, what: str, rotate: Callable[[], object]) -> KeyFacts:
        rotate()
        self._journal.key_rotated(what)
        return self.facts()
