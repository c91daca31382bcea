"""In which other regions the revision in force lets a tenant be processed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvrun.policy.document import Tier
from kvrun.policy.engine import Decider
from kvrun.policy.errors import PolicyError
from kvrun.policy.matching import InstanceFacts, Tenant


class OtherRegions:
    """Decides for the same deployment in ``regions``, of tenants who are refused here.

    Compiled when the first one asks: most never are. Thread-safe.
    """

    def __init__(self, facts: InstanceFacts, regions: Sequence[str]) -> None:
        self._facts = facts
        self._regions = [region for region in regions if region != facts.region]
        self._lock = threading.Lock()
        self._here: Decider | None = None
        self._tenants: Mapping[str, Tenant] = {}
        self._there: dict[str, Decider] = {}

    def use(self, here: Decider | None, tenants: Mapping[str, Tenant]) -> None:
        """Decide by the revision that decides here, or with None let nobody go anywhere."""
        with self._lock:
            self._here, self._tenants = here, tenants
            self._there = {}

    def regions(self, tenant_ref: str) -> tuple[str, ...]:
        """The regions where this tenant may be processed, in the order in which they were given."""
        with self._lock:
            here = self._here
            if here is None:
                return ()
            tenant = self._tenants.get(tenant_ref, Tenant())
            return tuple(r for r in self._regions if self._allows(here, r, tenant))

    def _allows(self, here: Decider, region: str, tenant: Tenant) -> bool:
        there = self._there.get(region)
        if there is None:
            facts = replace(self._facts, region=region, places={})
            there = self._there[region] = here.at(facts)
        try:
            return there.row(tenant)[Tier.GPU].allowed
        except PolicyError:
            return False  # a condition takes too long: nobody can say that it is allowed
