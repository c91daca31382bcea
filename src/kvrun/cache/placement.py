"""Which tiers may hold whose blocks: the question that every placement asks first.

A residency policy answers through a :class:`Gate`; without one ``OPEN_GATE`` does, which allows
every tier for any length of time. Nothing here does I/O or reads a clock.
"""

from typing import Protocol

from kvrun.cache.events import Tier


class Gate(Protocol):
    """What a policy says of a session's blocks on a tier. Asked often: it must answer at once."""

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        """Whether the session's sealed blocks may be placed on ``tier``."""

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        """Seconds after which a block leaves ``tier``, counted from its storing; None: no limit."""


class OpenGate:
    """Allows everything: the policy ``builtin-1``."""

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        """True."""
        return True

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        """No limit."""
        return None


OPEN_GATE = OpenGate()


def is_allowed(gate: Gate, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
    """What the gate says; a gate that fails says no."""
    try:
        return gate.allows(tenant_ref, session_ref, tier)
    except Exception:
        return False


def ttl_s(gate: Gate, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
    """How long blocks may stay by the gate; a gate that fails says no time at all."""
    try:
        return gate.ttl_s(tenant_ref, session_ref, tier)
    except Exception:
        return 0.0
