"""What the daemon did since it started, as counts. Nothing here names a tenant or a session."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvrun.audit.errors import AuditError
from kvrun.cache.events import Tier
from kvrun.claims.claim import ClaimError
from kvrun.errors import KvrunError
from kvrun.keys.errors import KeysError

REUSE_TIERS = ("gpu", "memory", "disk", "object")
_OPEN_TIERS = (Tier.MEMORY, Tier.DISK, Tier.OBJECT)


class Denial(StrEnum):
    """Why a request may not use the cache, as far as a metric says."""

    CLAIM = "claim"
    REPLAYED = "replayed"
    KEY_DESTROYED = "key_destroyed"
    BEING_ERASED = "being_erased"
    KEYS = "keys"
    LOG = "log"
    NO_ENGINE = "no_engine"
    RESIDENCY = "residency"
    OTHER = "other"


class DeniedError(KvrunError):
    """A request may not use the cache; ``denial`` is the class of the reason."""

    def __init__(self, denial: Denial, message: str) -> None:
        super().__init__(message)
        self.denial = denial


class ResidencyDeniedError(DeniedError):
    """The policy does not allow that the tenant is processed in this instance's region."""

    status = 403

    def __init__(self, region: str, elsewhere: Sequence[str] = ()) -> None:
        """``elsewhere``: regions of the same deployment where it is allowed."""
        where = f"the region {region}" if region else "this instance, whose region is not set"
        super().__init__(
            Denial.RESIDENCY, f"the residency policy does not allow this tenant in {where}"
        )
        self.hint = "Send the request to a deployment in a region that its policy allows."
        self.elsewhere = tuple(elsewhere)


def denial_of(error: KvrunError) -> Denial:
    """The class of the reason for which a request was denied."""
    if isinstance(error, DeniedError):
        return error.denial
    for kind, denial in (
        (ClaimError, Denial.CLAIM),
        (KeysError, Denial.KEYS),
        (AuditError, Denial.LOG),
    ):
        if isinstance(error, kind):
            return denial
    return Denial.OTHER


@dataclass(slots=True)
class Counts:
    """Totals since the start. ``reused`` and ``opened`` are by tier (``gpu``, ``memory``,
    ``disk``, ``object``): prompt tokens that were not computed, and blocks that were opened."""

    admitted: int = 0
    prompt_tokens: int = 0
    sealed_blocks: int = 0
    sealed_bytes: int = 0
    failed_blocks: int = 0
    denied: dict[Denial, int] = field(default_factory=lambda: dict.fromkeys(Denial, 0))
    reused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REUSE_TIERS, 0))
    opened: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(_OPEN_TIERS, 0))


class Totals:
    """Counts what happens. Thread-safe; the lock is held for an addition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def admitted(self, prompt_tokens: int) -> None:
        """A request may use the cache."""
        with self._lock:
            self._counts.admitted += 1
            self._counts.prompt_tokens += prompt_tokens

    def denied(self, denial: Denial) -> None:
        """A request may not."""
        with self._lock:
            self._counts.denied[denial] += 1

    def reused(self, gpu: int, memory: int, disk: int, objects: int) -> None:
        """A request reused so many prompt tokens from each tier."""
        with self._lock:
            for tier, tokens in zip(REUSE_TIERS, (gpu, memory, disk, objects), strict=True):
                self._counts.reused[tier] += tokens

    def opened(self, tiers: Sequence[Tier], failed: int) -> None:
        """Blocks were opened, each from its tier, and others did not open."""
        with self._lock:
            self._counts.failed_blocks += failed
            for tier in tiers:
                self._counts.opened[tier] += 1

    def sealed(self, blocks: int, size_bytes: int) -> None:
        """Blocks were sealed and can be found."""
        with self._lock:
            self._counts.sealed_blocks += blocks
            self._counts.sealed_bytes += size_bytes

    def snapshot(self) -> Counts:
        """The counts now."""
        with self._lock:
            now = self._counts
            return replace(
                now, denied=dict(now.denied), reused=dict(now.reused), opened=dict(now.opened)
            )
