"""Which tiers may hold whose blocks: the question that every placement asks first.

A residency policy answers through a :class:`Gate`; without one ``OPEN_GATE`` does, which allows
every tier for any length of time. Nothing here does I/O or reads a clock.
"""

from typing import NamedTuple, Protocol

from kvrun.cache.events import Tier


class Basis(NamedTuple):
    """What a decision rests on, as it goes on record: a short reason, and the policy's revision."""

    reason: str = ""
    revision: str = ""


NO_BASIS = Basis()
CAPACITY = Basis("capacity")
"""A full tier made room, or a tenant that has as much as the settings let it have."""
FOREIGN = Basis("another model")
"""It is of no use to the engine that is connected now."""
OTHER_SIZE = Basis("another block size")
"""Memory was emptied for an engine whose blocks are of another size."""

INTERRUPTED = Basis("interrupted removal")
"""It had left the disk when the removing of its files was cut short, as at a power cut."""


class Gate(Protocol):
    """What a policy says of a session's blocks on a tier. Asked often: it must answer at once."""

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        """Whether the session's sealed blocks may be placed on ``tier``."""

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        """Seconds after which a block leaves ``tier``, counted from its storing; None: no limit."""

    def settled(self, tenant_ref: str, session_ref: str, tier: Tier) -> Basis | None:
        """On what basis blocks may be on ``tier`` where they were just put; None: they may not.

        Asked where a placement is completed, since the policy may have changed since it was begun.
        Answer and basis are of one revision. May put a refusal on record.
        """

    def basis(self, tenant_ref: str, tier: Tier, why: str) -> Basis:
        """What a limit that the policy sets for a tenant's blocks on ``tier`` rests on.

        ``why`` is the code of what the limit did.
        """


class OpenGate:
    """Allows everything: the policy ``builtin-1``."""

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        """True."""
        return True

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        """No limit."""
        return None

    def settled(self, tenant_ref: str, session_ref: str, tier: Tier) -> Basis:
        """Nothing."""
        return NO_BASIS

    def basis(self, tenant_ref: str, tier: Tier, why: str) -> Basis:
        """Nothing."""
        return NO_BASIS


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


def settled(gate: Gate, tenant_ref: str, session_ref: str, tier: Tier) -> Basis | None:
    """On what basis blocks stay where they were just put; a gate that fails lets none stay."""
    try:
        return gate.settled(tenant_ref, session_ref, tier)
    except Exception:
        return None


def basis_of(gate: Gate, tenant_ref: str, tier: Tier, why: str) -> Basis:
    """What the gate's limit rests on; a gate that fails says nothing of it."""
    try:
        return gate.basis(tenant_ref, tier, why)
    except Exception:
        return NO_BASIS
