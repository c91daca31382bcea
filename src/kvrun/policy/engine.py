"""The seam for another policy engine: what makes an active revision decide for one instance.

Whatever the language of its files, an engine answers with rows: the decisions about a tenant, by
tier. Everything behind that, from the look-up of a placement to the sweep, knows rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kvrun.policy.bundle import ActivePolicy
from kvrun.policy.compile import CompiledRevision, PolicyTable, Row
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.sync import revision_of


class Decider(Protocol):
    """A revision, ready to decide for one instance. Raises PolicyError where it cannot decide."""

    def row(self, tenant: Tenant) -> Row:
        """The decisions about a tenant with these attributes."""

    def table(self, tenants: Mapping[str, Tenant]) -> PolicyTable:
        """What placements look up: the decisions about tenants by reference, and about those of
        whom nothing is known."""

    def at(self, facts: InstanceFacts) -> Decider:
        """The same revision for another instance, or the same one elsewhere."""


Compiler = Callable[[ActivePolicy, InstanceFacts, Callable[[], float]], Decider]
"""Makes a revision decide for an instance; the last argument measures effort. Raises
PolicyRejectedError for files that are not right."""


def compile_documents(
    active: ActivePolicy, facts: InstanceFacts, clock: Callable[[], float]
) -> CompiledRevision:
    """The engine that kvrun has: ResidencyPolicy documents with conditions in CEL."""
    return CompiledRevision(revision_of(active, clock), facts, clock)
