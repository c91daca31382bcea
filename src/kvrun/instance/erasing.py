"""An erasure's steps on one instance: its requests, keys, engines, ciphertext and ledger."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from kvrun.audit.errors import AuditError
from kvrun.audit.record import Event, format_time, parse_time
from kvrun.cache.store import CacheStore
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import (
    GpuEntry,
    Outcome,
    RequestKind,
    RootEntry,
    TierEntry,
)
from kvrun.erasure.document import make_certificate, sign_statement
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ErasedKey, Job
from kvrun.erasure.ledger import ErasureLedger
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.statement import StatementFacts, statement_of
from kvrun.erasure.targets import EngineScrubber
from kvrun.instance.erasing_checks import checks_after
from kvrun.instance.erasing_daemons import page_owners, settled, with_told
from kvrun.instance.instance import Instance
from kvrun.instance.protocol import page_owner
from kvrun.instance.transfers import Transfers
from kvrun.keys.canary import KeyCanary
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.signing import SigningKey

_replace = msgspec.structs.replace
_log = logging.getLogger(__name__)


class ErasureFailedError(ErasureError):
    """After an erasure something still opened; nothing is certified."""


@dataclass(frozen=True, slots=True)
class ErasureParts:
    """What the steps act on. ``transfers`` is None where no server runs; ``deadline_s`` is how long
    the engines of other daemons are waited for."""

    instance: Instance
    transfers: Transfers | None
    ledger: ErasureLedger
    archive: CertificateArchive
    scrubber: EngineScrubber
    signer: Callable[[], SigningKey]
    facts: StatementFacts
    now: Callable[[], float]
    drain_timeout_s: float
    deadline_s: float = 0.0


class InstanceSteps:
    """The steps of one job; ``scope`` is None for a job that goes on after a restart.

    A job that is tried again with its scope drains again, since its requests were let in meanwhile.

    ``refuse`` and ``admit`` begin and end the refusal of the scope's opens and stores.
    """

    def __init__(
        self,
        parts: ErasureParts,
        scope: ErasureScope | None,
        *,
        refuse: Callable[[], None] = lambda: None,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self._parts = parts
        self._scope = scope
        self._refuse = refuse
        self._admit = admit
        self._keys = parts.instance.keys.selection
        self._revoked: list[int] = []
        self._begun_here = False
        self._canaries: tuple[KeyCanary, ...] = ()

    def tombstone(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        scope = self._scope
        if scope is None:
            # Nothing was destroyed yet, and names are in no file: the request has to come again.
            raise ErasureError(f"the erasure {job.id} ended with the daemon before it began")
        self._refuse()
        self._begun_here = True
        # Engines are asked about these first: their sessions have no key to find them by.
        self._parts.instance.forget_expired()
        # In memory only: a copy of wrapped keys on disk would be what erasure is to outlive.
        found = self._keys.select(scope.ids, scope.session or None)
        self._canaries = found.canaries
        keys = [
            ErasedKey(
                key_id=key.key_id,
                generation=key.generation,
                tenant_ref=key.tenant_ref,
                session_ref=key.session_ref,
                owner=page_owner(key.salt).hex() if key.salt else "",
            )
            for key in found.keys
        ]
        return _replace(
            job,
            keys=keys,
            orphans=self._orphans(scope, keys),
            root_id=self._keys.root().root_id.hex(),
            epoch=found.epoch,
            engines=self._parts.scrubber.engines(),
        )

    def drain(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        parts = self._parts
        if self._scope is not None:
            self._revoked += parts.instance.revoke(self._scope.covers)
            self._let_run_out(job)
        cache = parts.instance.cache
        return _replace(job, keys=[_measured(cache, key) for key in job.keys])

    def destroy(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        parts = self._parts
        job = self._enter(job)
        ids = [key.key_id for key in job.keys]
        destruction = self._keys.destroy(ids, erasure=job.id, owners=page_owners(job))
        destroyed = destruction.keys
        # What ran on by a key whose scope nobody can name any more.
        self._revoked += parts.instance.revoke_destroyed()
        self._let_run_out(job)
        self._record(job, destroyed)
        if job.kind is not RequestKind.DEPLOYMENT:
            self._admit()
        root = self._root(job, destroyed) if job.keys else None
        job = with_told(job, destruction.told, format_time(parts.now()))
        shared = destruction.shared and bool(job.keys)
        notes = [*job.notes, _STRANGERS, _FILES_ELSEWHERE] if shared else job.notes
        return _replace(
            job,
            root=root,
            destroyed_at=parts.now(),
            shared=shared,
            notes=list(dict.fromkeys(notes)),
        )

    def scrub(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`.

        Engines and other daemons are waited for at the same time.
        """
        if not job.shared:
            return self._scrub_engines(job)
        parts = self._parts
        with ThreadPoolExecutor(1, thread_name_prefix="kvrun-erase-daemons") as beside:
            others = beside.submit(settled, self._keys, job, parts.deadline_s, parts.now)
            job = self._scrub_engines(job)
            daemons = others.result()
        # Until now one of them could use the keys.
        return _replace(job, daemons=daemons, destroyed_at=parts.now())

    def unlink(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        cache = self._parts.instance.cache
        dropped = [
            cache.drop(key.tenant_ref, key.session_ref, epoch=key.generation)
            for key in job.keys
            if key.session_ref
        ]
        orphans = [cache.drop(*refs) for refs in job.orphans]
        dropped += orphans
        self._admit()
        tiers = [
            TierEntry(
                tier="memory",
                blocks=sum(key.memory_blocks for key in job.keys),
                bytes=sum(key.memory_bytes for key in job.keys),
                unlinked=True,
            ),
            TierEntry(
                tier="disk",
                blocks=sum(key.disk_blocks for key in job.keys)
                + sum(found.disk_blocks for found in orphans),
                bytes=sum(key.disk_bytes for key in job.keys)
                + sum(found.disk_bytes for found in orphans),
                unlinked=not sum(found.failed for found in dropped),
            ),
        ]
        if cache.has_objects:
            # Packs of other instances are among what was removed, dead blocks too.
            removed = sum(found.object_blocks for found in dropped)
            known = sum(key.object_blocks for key in job.keys)
            size = sum(found.object_bytes for found in dropped)
            tiers.append(
                TierEntry(
                    tier="object",
                    blocks=max(removed, known),
                    bytes=max(size, sum(key.object_bytes for key in job.keys)),
                    unlinked=not sum(found.object_failed for found in dropped),
                )
            )
        return _replace(job, tiers=tiers)

    def prove(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        if not job.keys:
            return _replace(job, checks=[])
        checks = checks_after(self._keys, self._parts.instance.cache, job, self._canaries)
        bad = [check for check in checks if check.outcome is Outcome.FAIL]
        if bad:
            raise ErasureFailedError(
                f"the erasure {job.id} is not complete: "
                + "; ".join(f"{check.name}: {check.detail}" for check in bad),
                hint="Nothing was certified. Stop the daemon and keep its folder as it is.",
            )
        return _replace(job, checks=checks)

    def certify(self, job: Job) -> Job:
        """See :class:`kvrun.erasure.run.ErasureSteps`."""
        job = self._enter(job)
        # The same time again after a crash gives the same statement, and one record of it.
        return self.issue(job, job.id, parse_time(job.steps[-1].at))

    def issue(self, job: Job, certificate_id: str, issued_at: float) -> Job:
        """Sign, log and store a certificate of this job under an id of its own."""
        parts = self._parts
        signer = parts.signer()
        # A job that goes on after a crash may find that its signing key was replaced meanwhile.
        issued_at = max(issued_at, signer.created_at)
        statement = statement_of(
            job, parts.facts, certificate_id=certificate_id, issued_at=issued_at
        )
        signed = sign_statement(statement, signer)
        inclusion = parts.ledger.certified(job.id, job.workspace, job.deployment, signed.digest)
        parts.archive.put(certificate_id, make_certificate(signed, inclusion))
        return _replace(job, digest=signed.digest)

    def _scrub_engines(self, job: Job) -> Job:
        owners, everything = scrubbed_pages(self._parts, job)
        if not (job.sessions or owners or everything):
            return job
        outcome = self._parts.scrubber.scrub(
            scrub_call(job), owners, everything=everything, engines=job.engines
        )
        return _replace(
            job,
            gpu=GpuEntry(evicted=outcome.evicted, scrubbed=outcome.scrubbed, held=outcome.held),
            unacknowledged=list(outcome.unacknowledged),
            notes=[*job.notes, *outcome.notes],
        )

    def _let_run_out(self, job: Job) -> None:
        parts = self._parts
        if parts.transfers is not None and self._revoked:
            forced = parts.transfers.drain(self._revoked, parts.drain_timeout_s)
            if forced:
                _log.warning("erasure %s zeroed %d slots of a silent worker", job.id, forced)

    def _record(self, job: Job, destroyed: Sequence[DestroyedKey]) -> None:
        """One record a session; after a crash rather twice than never."""
        found = {key.key_id: key.reason for key in destroyed}
        gone = [
            (key.tenant_ref, key.session_ref, key.key_id, found.get(key.key_id, "erased"))
            for key in job.sessions
            if key.session_ref and (key.key_id in found or not self._begun_here)
        ]
        if gone:
            self._parts.instance.journal.keys_destroyed(gone, Event.ERASED)

    def _enter(self, job: Job) -> Job:
        """Enter the keys into the ledger; a ledger that cannot be written keeps no key alive."""
        if job.in_ledger or not job.keys:
            return job
        try:
            self._parts.ledger.enter(job.id, job.workspace, job.deployment, job.keys)
        except AuditError:
            if job.destroyed_at:
                raise
            _log.exception("the erasure ledger cannot be written; it is tried again later")
            return job
        return _replace(job, in_ledger=True)

    def _orphans(self, scope: ErasureScope, keys: list[ErasedKey]) -> list[tuple[str, str]]:
        if scope.session:
            return []
        known = {(key.tenant_ref, key.session_ref) for key in keys}
        tenants = {key.tenant_ref for key in keys if key.tenant_ref} | set(scope.refs)
        everything = scope.kind is RequestKind.DEPLOYMENT
        return [
            ref
            for ref in self._parts.instance.cache.session_refs(None if everything else tenants)
            if ref not in known
        ]

    def _root(self, job: Job, destroyed: Sequence[DestroyedKey]) -> RootEntry:
        if destroyed:
            evidence = destroyed[0].evidence
            return RootEntry(
                kind=evidence.root_kind,
                root_id=job.root_id,
                epoch_destroyed=evidence.epoch_destroyed,
                evidence=evidence.method,
                read_back=evidence.read_back.value,
            )
        if job.root is not None:
            return job.root
        return RootEntry(
            kind=self._keys.root().kind,
            root_id=job.root_id,
            epoch_destroyed=job.epoch,
            evidence="destroyed before a restart, which finished what was left to do",
        )


def scrubbed_pages(parts: ErasureParts, job: Job) -> tuple[list[bytes], bool]:
    """The owners whose pages engines have to zero for a job, or that all pages are meant.

    Owners of expired sessions that an engine still owes are among them: whose they were is known
    to nobody any more. A stateless deployment does not know whose a page is at all.
    """
    if job.kind is RequestKind.DEPLOYMENT or parts.instance.stateless:
        return [], True
    return [*dict.fromkeys((*page_owners(job), *parts.scrubber.owed()))], False


_STRANGERS = (
    "Engine memory behind other daemons that ended before the erasure, or have not been connected"
    " to the key service since it was started: it does not know of them."
)

_FILES_ELSEWHERE = (
    "Sealed files on the disks of other daemons that had not used the sessions since their last"
    " start: nobody can read them, and they stay until the session is used again there, they are"
    " evicted or their time is over. The tiers listed here are this daemon's."
)


def scrub_call(job: Job) -> int:
    """The number under which engines are asked for this job."""
    return int(job.id[:15], 16)


def process_runs(pid: int) -> bool:
    """Whether there is a process of that id."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        return True
    return False


def _measured(cache: CacheStore, key: ErasedKey) -> ErasedKey:
    if not key.session_ref:
        return key
    held = cache.measure(key.tenant_ref, key.session_ref, ask=True)
    return _replace(key, **held._asdict())
