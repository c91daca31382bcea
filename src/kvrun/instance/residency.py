"""Which residency policy this daemon runs: read, compiled, and switched in one step.

The files in ``residency`` below the data folder are the only way in: whoever follows the
repository, or knows the tenants, replaces them. A table is replaced as a whole, and a request keeps
the one that it began with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from kvrun.audit.record import Event
from kvrun.cache.events import Tier as CacheTier
from kvrun.cache.placement import Basis
from kvrun.config import KvrunConfig
from kvrun.instance.basis import basis_in
from kvrun.instance.elsewhere import OtherRegions
from kvrun.instance.journal import Journal
from kvrun.instance.refusals import Refusals
from kvrun.policy.bundle import ActivePolicy, PolicyFolder, SyncStatus
from kvrun.policy.compile import (
    Placement,
    PolicyTable,
    aged_table,
    builtin_table,
    closed_table,
    warned_table,
)
from kvrun.policy.document import Tier
from kvrun.policy.engine import Compiler, Decider, compile_documents
from kvrun.policy.errors import PolicyError, PolicyUnreadableError
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.observed import Observed, Standings, believed, places_text, standings
from kvrun.policy.observed import Standing as Seen
from kvrun.policy.setup import asked_of, facts_of, folder_of

_AGAIN_S = 30.0  # so long after a revision could not decide it is asked again
_NEVER = float("inf")
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


class ResidencyState(msgspec.Struct, frozen=True, kw_only=True):
    """What this daemon runs, for people and scripts. Times in seconds since 1970, 0 for never.

    The regions are declared ones; each standing is unverified, verified or mismatch.
    """

    mode: str
    revision: str
    standing: str
    region: str
    region_standing: str
    storage_region: str
    storage_standing: str
    activated_at: float
    confirmed_at: float
    tenants: int
    refused: int
    error: str


class Residency:
    """The decisions in force; also the cache's gate. Thread-safe.

    ``asked`` says who is asked where instance and Storage are; what they said last counts at once.

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
        regions_elsewhere: Sequence[str] = (),
        asked: str = "",
        compiler: Compiler = compile_documents,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        effort: Callable[[], float] = time.thread_time,
    ) -> None:
        self._declared = facts
        self._asked_where = asked
        self._seen = folder.seen(asked)
        self.facts = believed(facts, self._seen)
        """What decisions rest on."""
        self.on_change: Callable[[], None] = lambda: None
        self.on_new_table: Callable[[], None] = lambda: None
        self.refusals = Refusals(clock)
        self.elsewhere = OtherRegions(facts, regions_elsewhere)
        self._folder = folder
        self._journal = journal
        self._mode = mode
        self._max_age_s = max_age_s
        self._now = now
        self._effort = effort
        self._compiler = compiler
        self._clock = clock
        self._lock = threading.Lock()
        self._in_force = connected and mode is not Mode.OFF
        self._undecided = True  # nothing was decided yet for where it is
        self._tried = Standing.MISSING
        self._again_at = _NEVER
        self._stamps: dict[Path, tuple[int, int, int] | None] = {}
        self._asked = Path()
        self._active: ActivePolicy | None = None
        self._compiled: Decider | None = None
        self._tenants: dict[str, Tenant] = {}
        self._status = SyncStatus()
        self._error = ""
        self._rejected = ""
        self._standing = Standing.OFF if mode is Mode.OFF else Standing.BUILTIN
        self._table = builtin_table()
        if self._in_force:
            self._table, self._standing = self._closed(), Standing.MISSING
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
            regions_elsewhere=tuple(config.gateway.elsewhere),
            asked=asked_of(config),
        )

    @property
    def revision(self) -> str:
        """The revision in force."""
        return self._table.revision

    @property
    def standing(self) -> Standing:
        """What the decisions rest on now."""
        return self._standing

    def placement(self, tenant_ref: str) -> Placement:
        """The decisions about a tenant, to be kept by a request."""
        table = self._table
        return Placement(table.revision, table.row(tenant_ref))

    def allows(self, tenant_ref: str, session_ref: str, tier: CacheTier) -> bool:
        """Whether a session's sealed blocks may be placed in a tier; refusals are counted."""
        return self.refusals.judge(self.placement(tenant_ref), tenant_ref, session_ref, tier)

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: CacheTier) -> float | None:
        """How long blocks may stay in a tier, no time at all where they may not be there."""
        decision = self._table.row(tenant_ref)[tier]
        return decision.ttl_s if decision.allowed else 0.0

    def settled(self, tenant_ref: str, session_ref: str, tier: CacheTier) -> Basis | None:
        """What the decision rests on by which blocks may be in a tier; None: they may not."""
        placement = self.placement(tenant_ref)
        # Before a write to disk or Storage somebody asked; before a restore into memory nobody did.
        if tier is CacheTier.MEMORY or not placement.allows(tier):
            self.refusals.judge(placement, tenant_ref, session_ref, tier)
        return basis_in(placement, tier) if placement.allows(tier) else None

    def basis(self, tenant_ref: str, tier: CacheTier, why: str) -> Basis:
        """What a limit for a tenant in a tier rests on, as it goes on record."""
        return basis_in(self.placement(tenant_ref), tier, why)

    def cap_of(self, tier: CacheTier) -> Callable[[str], int | None]:
        """How many bytes a tenant's blocks may take in a tier, by its reference; None: no limit."""
        return lambda tenant_ref: self._table.row(tenant_ref)[tier].max_bytes

    def may_serve(self, tenant_ref: str, session_ref: str) -> bool:
        """Whether a tenant may be processed here at all."""
        return self.refusals.judge(self.placement(tenant_ref), tenant_ref, session_ref, Tier.GPU)

    @property
    def standings(self) -> Standings:
        """Whether instance and Storage are where they are declared to be, as far as was seen."""
        return standings(self._declared, self._seen)

    def observed(self, seen: Observed) -> None:
        """Somebody looked where instance and Storage are; what was not seen stays as it was."""
        with self._lock:
            before = self.standings
            self._take_seen(seen)
            facts, now = believed(self._declared, self._seen), self.standings
            self._note_mismatch(before, now)
            if facts == self.facts:
                return
            self.facts, self._undecided = facts, True
            if self._compiled is not None:
                self._compiled = self._compiled.at(facts)
        self.refresh()

    def refresh(self) -> bool:
        """Take up what changed in the folder, or became too old; whether decisions changed."""
        if not self._in_force:
            return False
        with self._lock:
            news, standing = self._read() or self._undecided, self._stand()
            if not news and standing is self._tried and self._clock() < self._again_at:
                return False
            self._tried, self._again_at = standing, _NEVER
            try:
                table = self._make(standing)
            except PolicyError as error:
                # A condition that takes too long, perhaps for a tenant that is new.
                self._fail(error)
                self._again_at = self._clock() + _AGAIN_S
                table, standing = self._left(standing)
                if table is self._table or (standing is self._standing and not news):
                    return False
            before, undecided = self._table.revision, self._undecided
            self._table, self._standing, self._undecided = table, standing, False
            decider = None if standing is Standing.MISSING else self._compiled
            self.elsewhere.use(decider, self._tenants)
            self._journal.policy_revision = table.revision
            if table.revision != before or undecided:
                reason = standing.value + places_text(self.facts)
                self._journal.policy_event(Event.POLICY_ACTIVATED, table.revision, reason)
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
            active, found = self._active, self.standings
            return ResidencyState(
                mode=self._mode.value,
                revision=self._table.revision,
                standing=self._standing.value,
                region=self._declared.region,
                region_standing=found.instance.value,
                storage_region=self._declared.place(Tier.OBJECT).region,
                storage_standing=found.storage.value,
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
                    self._compiled = self._compiler(active, self.facts, self._effort)
                    self._active = active
                    changed = True
            if self._again_at == _NEVER:
                self._error = ""
        except PolicyUnreadableError as error:
            self._stamps.pop(self._asked, None)  # it is the same file that is read again
            self._fail(error)
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
            return self._closed()
        table = self._compiled.table(self._tenants)
        return self._as_asked(aged_table(table) if standing is Standing.AGED else table)

    def _closed(self) -> PolicyTable:
        return self._as_asked(closed_table(self.facts, self._tenants))

    def _left(self, standing: Standing) -> tuple[PolicyTable, Standing]:
        """What holds while the revision cannot decide: what is in force, unless it is for another
        place, too old, or nothing yet."""
        if self._undecided or self._standing is Standing.MISSING:
            return self._closed(), Standing.MISSING
        if standing is Standing.AGED:
            return self._as_asked(aged_table(self._table)), standing
        return self._table, self._standing

    def _as_asked(self, table: PolicyTable) -> PolicyTable:
        return warned_table(table) if self._mode is Mode.WARN else table

    def _take_seen(self, seen: Observed) -> None:
        """What was seen is remembered over a restart: a mismatch lasts until it is seen to end."""
        instance, storage = seen.instance or self._seen.instance, seen.storage or self._seen.storage
        if (instance, storage) == (self._seen.instance, self._seen.storage):
            return
        self._seen = Observed(instance, storage)
        try:
            self._folder.put_seen(self._asked_where, self._seen)
        except PolicyError as error:
            _log.warning("where things were seen is not remembered: %s", error.message)

    def _note_mismatch(self, before: Standings, now: Standings) -> None:
        places = (
            ("instance", before.instance, now.instance, self._seen.instance),
            ("Storage", before.storage, now.storage, self._seen.storage),
        )
        for what, was, found, where in places:
            if found is Seen.MISMATCH and was is not Seen.MISMATCH:
                _log.error("the %s is in %s, not in the region that is declared", what, where)

    def _note_rejection(self) -> None:
        last = self._status.last
        if last is None or last.outcome != "rejected" or last.revision == self._rejected:
            return
        self._rejected = last.revision
        reason = last.problems[0] if last.problems else ""
        self._journal.policy_event(Event.POLICY_REJECTED, last.revision, reason)

    def _is_new(self, path: Path) -> bool:
        self._asked = path
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
