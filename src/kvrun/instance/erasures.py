"""Erasures of one deployment: planned, run one after the other where they overlap, and resumed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvrun.audit.errors import AuditError
from kvrun.audit.record import Event, format_time
from kvrun.erasure.certificate import ChildEntry, RequestKind, StepEntry
from kvrun.erasure.commitment import SALT_BYTES, commit, make_opening
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ID_BYTES, Job, JobState, JobStore
from kvrun.erasure.plan import AGREED_LIFETIME_S, TOKEN_LIFETIME_S, ErasureScope, Plan
from kvrun.erasure.run import run_job
from kvrun.erasure.targets import ScrubOutcome
from kvrun.errors import KvrunError
from kvrun.instance.addenda import Addenda
from kvrun.instance.erasing import ErasureParts, InstanceSteps
from kvrun.instance.erasing_scopes import ErasingScopes
from kvrun.instance.erasure_plans import ErasurePlans

_LISTED = 10_000
_replace = msgspec.structs.replace
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """Who asks for what. ``confirm`` is a plan's token; with ``agreed`` a second person agreed to
    it, so it may be older; ``confirmed`` says that none is needed.

    With ``id`` (24 hex digits) and ``salt`` (32 random bytes) the same request can come again and
    gets the same answer. ``requested_at`` (seconds since 1970): when, if it was before now.
    """

    scope: ErasureScope
    requester: str
    reference: str = ""
    legal_basis: str = ""
    confirm: str = ""
    confirmed: bool = False
    id: str = ""
    salt: bytes = b""
    requested_at: float = 0.0
    agreed: bool = False

    @property
    def token_lifetime_s(self) -> float:
        """How old the token may be."""
        return AGREED_LIFETIME_S if self.agreed else TOKEN_LIFETIME_S


class ErasedSession(msgspec.Struct, frozen=True):
    """A session that an erasure reached."""

    tenant_ref: str
    session_ref: str
    generation: int
    memory_blocks: int
    disk_blocks: int


class ErasureResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished erasure. ``opening`` proves whom it is about; it is given out here only.

    ``more`` sessions were erased than ``erased`` lists. ``earlier``: this was done when the request
    came before.
    """

    id: str
    certificate: str
    claim_class: str
    erased: list[ErasedSession]
    unacknowledged: list[str]
    opening: str
    digest: str
    more: int = 0
    earlier: bool = False


class Erasures:
    """Plans and runs them. Thread-safe; ``token_key`` authenticates plans (32 bytes).

    ``on_erasing(scope)`` is told when an erasure begins, ``on_erased(scope)`` when a scope's keys
    are gone. ``on_certified(kind, seconds)`` and ``on_failed(kind)`` are told how one ended.
    """

    def __init__(
        self,
        parts: ErasureParts,
        jobs: JobStore,
        token_key: bytes,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        on_erased: Callable[[ErasureScope], None] = lambda scope: None,
    ) -> None:
        self.on_erasing: Callable[[ErasureScope], None] = lambda scope: None
        self.on_erased = on_erased
        self.on_certified: Callable[[str, float], None] = lambda kind, seconds: None
        self.on_failed: Callable[[str], None] = lambda kind: None
        self._parts = parts
        self._jobs = jobs
        self._random_bytes = random_bytes
        self._keys = parts.instance.keys.selection
        self._plans = ErasurePlans(parts.instance, self._keys, token_key, parts.now)
        self._under_way = ErasingScopes(
            lambda scope: self.on_erasing(scope), lambda scope: self.on_erased(scope)
        )
        self._addenda = Addenda(parts, jobs)
        self._parents = threading.Lock()
        # By id, as they are now, also what the disk did not take.
        self._unfinished: dict[str, Job] = {}
        self._scopes: dict[str, ErasureScope] = {}
        parts.instance.is_being_erased = self._under_way.is_refused

    @property
    def unfinished(self) -> int:
        """How many are not certified yet."""
        return len(self._unfinished)

    def plan(
        self, scope: ErasureScope, earlier: str = "", *, lifetime_s: float = TOKEN_LIFETIME_S
    ) -> Plan:
        """What an erasure of the scope would reach now, with the token to confirm it.

        With the token of an ``earlier`` plan, at most ``lifetime_s`` old: only where that one
        confirms it. Raises ConfirmationError.
        """
        scope = self._plans.resolved(scope)
        if earlier:
            self._plans.check(scope, earlier, lifetime_s=lifetime_s)
        return self._plans.plan(scope)

    def erase(
        self, request: ErasureRequest, *, begins: Callable[[], None] = lambda: None
    ) -> ErasureResult:
        """Erase and certify; returns when the certificate is stored.

        ``begins`` is called when it is its turn, before it looks for keys. A request whose id came
        before is answered with what became of it.

        Raises ConfirmationError without a good token where one is needed, ErasureError for an id
        of another erasure or of one that is not finished, and what a step raises.
        """
        scope = self._plans.resolved(request.scope)
        opening = self._opening(request, self._parts.instance.deployment)
        with self._under_way.alone(scope):
            earlier = self._earlier(request, opening)
            if earlier is not None:
                return _replace(self._result(earlier, opening), earlier=True)
            if not request.confirmed:
                self._plans.check(scope, request.confirm, lifetime_s=request.token_lifetime_s)
            begins()
            done = self._run(self._new_job(request, opening), scope)
        return self._result(done, opening)

    def resume(self) -> int:
        """Finish what a crash cut short; call it before anything is served. How many there were.

        Raises what a step raises while keys are not destroyed: they must not be served then.
        """
        count = 0
        for job in self._jobs.jobs():
            self._addenda.found(job)
            if job.state is JobState.CERTIFIED:
                continue
            count += 1
            try:
                self._finish(job)
            except (ErasureError, AuditError):
                if self._keys.living([key.key_id for key in job.keys]):
                    raise
                self._unfinished.setdefault(job.id, job)
                _log.exception("the erasure %s cannot be certified yet", job.id)
        return count

    def retry(self) -> int:
        """Try again to finish what failed; call it every now and then. How many are left."""
        with self._under_way.still() as still:
            jobs = list(self._unfinished.values()) if still else []
        for job in jobs:
            try:
                self._finish(job)
            except KvrunError as error:
                _log.warning("the erasure %s is not finished: %s", job.id, error.message)
        return len(self._unfinished)

    def replay(self) -> int:
        """Destroy again what the ledger says was destroyed, and is back from an older copy."""
        again = self._keys.living(self._parts.ledger.destroyed_keys)
        if not again:
            return 0
        _log.warning("%d erased keys were put back from an older copy; destroying them", len(again))
        wish = self._random_bytes(ID_BYTES).hex()
        destruction = self._keys.destroy(again, erasure=wish)
        # Others that meet the service again may have them too.
        self._keys.settle(wish, [name for _, name in destruction.told], pages_within_s=0.0)
        for key in destruction.keys:
            if key.session_ref:
                self._parts.instance.cache.drop(
                    key.tenant_ref, key.session_ref, epoch=key.generation
                )
                self._parts.instance.journal.key_destroyed(
                    key.tenant_ref, key.session_ref, key.key_id, Event.ERASED, "ledger"
                )
        return len(again)

    def acknowledged(self, call: int, outcome: ScrubOutcome) -> None:
        """An engine confirmed after the deadline: an addendum says so."""
        self._addenda.acknowledged(call, outcome)

    def follow_up(self) -> int:
        """See :class:`kvrun.instance.addenda.Addenda`; call it every now and then."""
        return self._addenda.follow_up()

    def parent(
        self, request: ErasureRequest, children: list[ChildEntry]
    ) -> tuple[str, Path, bytes]:
        """Certify what became of a request in several deployments; id, path and opening.

        A request whose id came before has its certificate already. Raises ErasureError.
        """
        opening = self._opening(request, "")
        with self._parents:
            job = self._earlier(request, opening)
            if job is None:
                step = StepEntry(name=JobState.PROVEN.value, at=format_time(self._parts.now()))
                job = _replace(
                    self._new_job(request, opening),
                    state=JobState.PROVEN,
                    steps=[step],
                    children=children,
                )
                self._save(job)
                self._finish(job)
        return job.id, self._parts.archive.path(job.id), opening

    def certificate(self, erasure_id: str) -> bytes | None:
        """The certificate of an erasure, if there is one."""
        return self._parts.archive.get(erasure_id)

    def _opening(self, request: ErasureRequest, deployment: str) -> bytes:
        # An account is in no workspace.
        of_account = request.scope.kind is RequestKind.ACCOUNT
        workspace = "" if of_account else self._parts.instance.workspace
        subject = request.scope.subject(workspace, deployment)
        return make_opening(subject, request.salt or self._random_bytes(SALT_BYTES))

    def _new_job(self, request: ErasureRequest, opening: bytes) -> Job:
        instance, now = self._parts.instance, self._parts.now()
        return Job(
            id=request.id or self._random_bytes(ID_BYTES).hex(),
            kind=request.scope.kind,
            workspace=instance.workspace,
            deployment=instance.deployment,
            requester=_printable(request.requester),
            reference=_printable(request.reference),
            legal_basis=_printable(request.legal_basis),
            requested_at=min(request.requested_at or now, now),
            commitments=[commit(opening)],
        )

    def _earlier(self, request: ErasureRequest, opening: bytes) -> Job | None:
        """The erasure that this request began when it came before."""
        if not request.id:
            return None
        job = self._unfinished.get(request.id) or self._jobs.load(request.id)
        if job is not None and commit(opening) not in job.commitments:
            raise ErasureError(f"the erasure {request.id} is about something else")
        if job is not None and job.state is not JobState.CERTIFIED:
            raise ErasureError(
                f"the erasure {request.id} is not finished; it stands at {job.state}",
                hint="The daemon goes on with it by itself: ask again.",
            )
        return job

    def _result(self, job: Job, opening: bytes) -> ErasureResult:
        held = bool(job.keys)
        return ErasureResult(
            id=job.id,
            certificate=str(self._parts.archive.path(job.id)),
            claim_class=self._parts.facts.claim.value if held else "",
            erased=[
                ErasedSession(
                    key.tenant_ref,
                    key.session_ref,
                    key.generation,
                    key.memory_blocks,
                    key.disk_blocks,
                )
                for key in job.sessions[:_LISTED]
            ],
            more=max(0, len(job.sessions) - _LISTED),
            unacknowledged=job.unconfirmed,
            opening=opening.decode(),
            digest=job.digest,
        )

    def _run(self, job: Job, scope: ErasureScope) -> Job:
        steps = InstanceSteps(
            self._parts,
            scope,
            refuse=lambda: self._under_way.refuse(scope),
            admit=lambda: self._under_way.admit(scope),
        )
        self._scopes[job.id] = scope
        try:
            return self._settled(run_job(job, steps, save=self._save, now=self._parts.now))
        finally:
            self._under_way.admit(scope)
            if job.id not in self._unfinished:
                del self._scopes[job.id]
            else:
                self.on_failed(job.kind)

    def _finish(self, job: Job) -> None:
        scope = self._scopes.get(job.id)
        if scope is not None and self._keys.living([key.key_id for key in job.keys]):
            with self._under_way.alone(scope):
                self._under_way.refuse(scope)
                self._run(job, scope)
            return
        # Sessions of the scope have other keys by now: what they do is no part of this job.
        steps = InstanceSteps(self._parts, None)
        self._settled(run_job(job, steps, save=self._save, now=self._parts.now))
        self._scopes.pop(job.id, None)

    def _settled(self, done: Job) -> Job:
        self._addenda.certified(done)
        return done

    def _save(self, job: Job) -> None:
        self._unfinished[job.id] = job
        self._jobs.save(job)
        if job.state is JobState.CERTIFIED:
            del self._unfinished[job.id]
            self.on_certified(job.kind, self._parts.now() - job.requested_at)


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:200]
