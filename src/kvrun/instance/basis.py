"""What the decisions of a residency policy rest on, in the words of the audit log."""

from __future__ import annotations

from kvrun.audit.decisions import DECISION_PREFIX
from kvrun.cache.placement import Basis
from kvrun.policy.compile import BUILTIN_REVISION, Placement


def basis_in(placement: Placement, tier: int, why: str = "") -> Basis:
    """Why a tenant's blocks may be in a tier or not, or what its limit did (``why``); its rule.

    Without a policy there is no rule to name: the revision alone says it.
    """
    if placement.revision == BUILTIN_REVISION:
        return Basis("", placement.revision)
    decision = placement.row[tier]
    said = f"{why} {decision.rule}".strip() if why else decision.code()
    return Basis(f"{DECISION_PREFIX}{said}", placement.revision)
