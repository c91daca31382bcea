"""Which residency policy this daemon runs: read, compiled, and switched in one step.

The files in ``residency`` below the data folder are the only way in: whoever follows the
repository, or knows the tenants, replaces them. A table is replaced as a whole, and a request keeps
the one that it began with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from kvrun.audit.record import Event
from kvrun.cache.events import Tier as CacheTier
from kvrun.config import KvrunConfig
from kvrun.instance.journal import Journal
from kvrun.instance.refusals import Refusals
from kvrun.instance.totals import Denial, DeniedError
from kvrun.policy.bundle import ActivePolicy, PolicyFolder, SyncStatus
from kvrun.policy.compile import (
    CompiledRevision,
    Placement,
    PolicyTable,
    aged_table,
    builtin_table,
    closed_table,
    warned_table,
)
from kvrun.policy.document import Tier
from kvrun.policy.errors import PolicyError
from kvrun.policy.matching import InstanceFacts, Tenant, Why
from kvrun.policy.setup import facts_of, folder_of
from kvrun.policy.sync import revision_of

_log = logging.getLogger(__name__)


class Mode(StrEnum):
    """What a policy is for here."""

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"


class Standing(StrEnum):
    """What the decisions rest on."""

    BUILTIN = "no repository is connected"
    OFF = "switched off"
    ACTIVE = "active"
    AGED = "too old: GPU memory only"
    MISSING = "no valid policy: GPU memory only"


class ResidencyDeniedError(DeniedError):
    """The policy does not allow that the tenant is processed in this instance's region."""

    status = 403

    def __init__(self, region: str) -> None:
        where = f"the region {region}" if region else "this instance, whose region is not set"
        super().__init__(
            Denial.RESIDENCY, f"the residency policy does not allow this tenant in {where}"
        )
        self.hint = "Send the request to a deployment in a region that its policy allows."


class ResidencyState(msgspec.Struct, frozen=True, kw_only=True):
    """What this daemon runs, for people and scripts. Times in seconds since 1970, 0 for never."""

    mode: str
    revision: str
    standing: str
    region: str
    storage_region: str
    activated_at: float
    confirmed_at: float
    tenants: int
    refused: int
    error: str


class Residency:
    """The decisions in force; also the cache's gate. Thread-safe.

    ``on_new_table`` and ``on_change`` are called, in this order and without a lock, after the
    decisions were replaced: what is misplaced is looked for, and whoever was told is told anew.
    """

    def __init__(
        self,
        folder: PolicyFolder,
        facts: InstanceFacts,
        journal: Journal,
        *,
        mode: Mode = Mode.ENFORCE,
        connected: bool = False,
        max_age_s: float = float("inf"),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = facts
        self.on_change: Callable[[], None] = lambda: None
        self.on_new_table: Callable[[], None] = lambda: None
        self.refusals = Refusals(clock)
        self._folder = folder
        self._journal = journal
        self._mode = mode
        self._max_age_s = max_age_s
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._in_force = connected and mode is not Mode.OFF
        self._stamps: dict[Path, tuple[int, int, int] | None] = {}
        self._active: ActivePolicy | None = None
        self._compiled: CompiledRevision | None = None
        self._tenants: dict[str, Tenant] = {}
        self._status = SyncStatus()
        self._error = ""
        self._rejected = ""
        self._standing = Standing.OFF if mode is Mode.OFF else Standing.BUILTIN
        self._table = builtin_table()
        if self._in_force:
            self.refresh()

    @classmethod
    def of(cls, config: KvrunConfig, journal: Journal) -> Residency:
        """The one that a configuration asks for."""
        residency = config.residency
        return cls(
            folder_of(config),
            facts_of(config),
            journal,
            mode=Mode(residency.mode),
            connected=residency.repository is not None,
            max_age_s=residency.max_age_s,
        )

    @property
    def revision(self) -> str:
        """The revision in force."""
        return self._table.revision

    def placement(self, tenant_ref: str) -> Placement:
        """The decisions about a tenant, to be kept by a request."""
        table = self._table
        return Placement(table.revision, table.row(tenant_ref))

    def allows(self, tenant_ref: str, session_ref: str, tier: CacheTier) -> bool:
        """Whether a session's sealed blocks may be placed in a tier; refusals are counted."""
        table = self._table
        decision = table.row(tenant_ref)[tier]
        if decision.why is not Why.ALLOWED:
            self.refusals.add(tenant_ref, session_ref, tier, decision, table.revision)
        return decision.allowed

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: CacheTier) -> float | None:
        """How long blocks may stay in a tier, no time at all where they may not be there."""
        decision = self._table.row(tenant_ref)[tier]
        return decision.ttl_s if decision.allowed else 0.0

    def may_serve(self, tenant_ref: str, session_ref: str) -> bool:
        """Whether a tenant may be processed here at all."""
        table = self._table
        decision = table.row(tenant_ref)[Tier.GPU]
        if decision.why is not Why.ALLOWED:
            self.refusals.add(tenant_ref, session_ref, Tier.GPU, decision, table.revision)
        return decision.allowed

    def refresh(self) -> bool:
        """Take up what changed in the folder, or became too old; whether decisions changed."""
        if not self._in_force:
            return False
        with self._lock:
            changed = self._read()
            standing = self._stand()
            if not changed and standing is self._standing:
                return False
            before = self._table.revision
            try:
                table = self._make(standing)
            except PolicyError as error:
                # A condition that takes too long for a tenant that is new: what is in force stays.
                self._fail(error)
                return False
            self._table, self._standing = table, standing
            self._journal.policy_revision = table.revision
            if table.revision != before:
                self._journal.policy_event(Event.POLICY_ACTIVATED, table.revision, standing.value)
        self.on_new_table()
        self.on_change()
        return True

    def write_refusals(self) -> None:
        """Put on record what was refused since the last call, as far as the cap allows."""
        refusals, unrecorded = self.refusals.take()
        self._journal.refused(refusals, unrecorded)

    def state(self) -> ResidencyState:
        """What this daemon runs."""
        with self._lock:
            active = self._active
            return ResidencyState(
                mode=self._mode.value,
                revision=self._table.revision,
                standing=self._standing.value,
                region=self.facts.region,
                storage_region=self.facts.place(Tier.OBJECT).region,
                activated_at=active.activated_at if active else 0.0,
                confirmed_at=self._status.confirmed_at,
                tenants=len(self._tenants),
                refused=self.refusals.total,
                error=self._error,
            )

    def _read(self) -> bool:
        """Read the files that changed; whether what they say about decisions did."""
        folder, changed = self._folder, False
        try:
            if self._is_new(folder.status_file):
                self._status = folder.status()
                self._note_rejection()
            if self._is_new(folder.tenants_file):
                self._tenants = folder.tenants()
                changed = True
            if self._is_new(folder.active_file):
                active = folder.active()
                if active is not None:
                    revision = revision_of(active, self._clock)
                    self._compiled = CompiledRevision(revision, self.facts, self._clock)
                    self._active = active
                    changed = True
            self._error = ""
        except PolicyError as error:
            self._fail(error)
        return changed

    def _stand(self) -> Standing:
        if self._compiled is None:
            return Standing.MISSING
        age_s = self._now() - self._status.confirmed_at
        return Standing.AGED if age_s > self._max_age_s else Standing.ACTIVE

    def _make(self, standing: Standing) -> PolicyTable:
        if self._compiled is None:
            table = closed_table(self.facts, self._tenants)
        else:
            table = self._compiled.table(self._tenants)
        if standing is Standing.AGED:
            table = aged_table(table)
        return warned_table(table) if self._mode is Mode.WARN else table

    def _note_rejection(self) -> None:
        last = self._status.last
        if last is None or last.outcome != "rejected" or last.revision == self._rejected:
            return
        self._rejected = last.revision
        reason = last.problems[0] if last.problems else ""
        self._journal.policy_event(Event.POLICY_REJECTED, last.revision, reason)

    def _is_new(self, path: Path) -> bool:
        try:
            found = path.stat()
            stamp: tuple[int, int, int] | None = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            stamp = None
        if self._stamps.get(path, ()) == stamp:
            return False
        self._stamps[path] = stamp
        return True

    def _fail(self, error: PolicyError) -> None:
        if error.message != self._error:
            _log.error("the residency policy cannot be taken up: %s", error.message)
        self._error = error.message[:300]


def allowed_tiers(placement: Placement, tiers: bytes) -> bytes:
    """What ``match`` found (a tier a block), less what is where it may not be by now.

    What is in Storage comes by way of memory.
    """
    for tier in (CacheTier.MEMORY, CacheTier.DISK, CacheTier.OBJECT):
        by_memory = tier is not CacheTier.OBJECT or placement.allows(CacheTier.MEMORY)
        if not placement.allows(tier) or not by_memory:
            tiers = tiers.replace(bytes([tier]), b"\0")
    return tiers


def residency_operations(
    residency: Residency,
) -> dict[str, Callable[[Mapping[str, str]], ResidencyState]]:
    """What may be asked of a running daemon, for its admin service."""

    def reload(_: Mapping[str, str]) -> ResidencyState:
        residency.refresh()
        return residency.state()

    return {"residency": lambda _: residency.state(), "residency_reload": reload}
