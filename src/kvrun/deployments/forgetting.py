"""Forgetting what was said of tenants that are gone, however they went: erased or expired."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvrun.config import KvrunConfig
from kvrun.deployments import asking
from kvrun.deployments.registry import TenantRegistry
from kvrun.instance.usage import MAX_IDS

EVERY_S = 600.0


class Forgetting:
    """Asks a running daemon which labelled tenants have sessions, MAX_IDS every ten minutes.

    Who has none at two looks in a row is forgotten: its key dies with its last session, and with
    that its reference. One look might fall between a session's end and the next one's begin.
    """

    def __init__(self, tenants: TenantRegistry, now: Callable[[], float]) -> None:
        self._tenants = tenants
        self._now = now
        self._due: dict[str, float] = {}
        self._after: dict[str, str] = {}
        self._missing: dict[str, set[str]] = {}

    def look(self, deployment_id: str, config: KvrunConfig) -> None:
        """One look, where it is time for one; nothing where no daemon answers."""
        if self._now() < self._due.get(deployment_id, 0.0):
            return
        self._due[deployment_id] = self._now() + EVERY_S
        refs = self._next(deployment_id)
        living = asking.living(config, refs) if refs else None
        if living is None:
            return
        missing = self._missing.setdefault(deployment_id, set())
        gone = set(refs) - living
        self._tenants.forget(deployment_id, gone & missing)
        missing.difference_update(refs)
        missing.update(gone)

    def _next(self, deployment_id: str) -> Collection[str]:
        """The labelled tenants after those of the look before; the first ones after the last."""
        after = self._after.get(deployment_id, "")
        refs = self._tenants.refs(deployment_id, after=after, limit=MAX_IDS)
        self._after[deployment_id] = refs[-1] if len(refs) == MAX_IDS else ""
        return refs
