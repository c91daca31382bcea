"""The instance: keys, cache and log of one deployment on one box, behind plain methods.

Everything that the socket can ask for is a method here; ``server`` only carries messages.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence

from kvrun.audit.record import Event
from kvrun.cache.errors import SessionDroppedError
from kvrun.cache.events import Tier
from kvrun.cache.store import CacheStore
from kvrun.claims.claim import ClaimError
from kvrun.claims.verify import ClaimVerifier, ReplayWindow
from kvrun.errors import KvrunError
from kvrun.instance.blocks import SessionBlocks
from kvrun.instance.grant import SessionGrant
from kvrun.instance.handles import Handle, HandleTable
from kvrun.instance.journal import Journal
from kvrun.instance.layout import EngineLayout, WorkerShape
from kvrun.instance.pack_keys import SessionPackKeys
from kvrun.instance.protocol import Match, Matched, ProtocolError, Verdict, page_owner
from kvrun.instance.residency import Residency, allowed_tiers
from kvrun.instance.retention import RetentionDay
from kvrun.instance.totals import Denial, DeniedError, ResidencyDeniedError, denial_of
from kvrun.keys.daemon_state import Pages
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.session import SessionKeys
from kvrun.keys.source import SessionKeySource
from kvrun.policy.document import Tier as ResidencyTier
from kvrun.telemetry.traces import NoTracing, SpanKind, Trace, Tracing

TakenPages = Callable[[list[int], list[bytes], Callable[[Pages], None]], None]
_MAX_HASH_BYTES = 64
_log = logging.getLogger(__name__)


class ErasureUnderWayError(DeniedError):
    """The session is being erased: it opens again, empty, in a moment."""

    status = 409

    def __init__(self, message: str) -> None:
        super().__init__(Denial.BEING_ERASED, message)


class Instance:
    """One deployment's governed cache on this box. Thread-safe."""

    def __init__(
        self,
        *,
        workspace: str,
        deployment: str,
        stateless: bool,
        keys: SessionKeySource,
        cache: CacheStore,
        journal: Journal,
        verifier: ClaimVerifier,
        residency: Residency,
        now: Callable[[], float],
    ) -> None:
        self.workspace = workspace
        self.deployment = deployment
        self.stateless = stateless
        self.keys = keys
        self.cache = cache
        self.journal = journal
        self.handles = HandleTable()
        self.on_stale_claim: Callable[[str, str], None] = lambda tenant, session: None
        self.on_revoked: Callable[[list[int]], None] = lambda handles: None
        self.on_expired: Callable[[list[bytes]], None] = lambda owners: None
        self.on_taken: TakenPages = lambda ended, owners, tell: None  # nothing is known of pages
        self.is_being_erased: Callable[[str, str], bool] = lambda tenant, session: False
        self.tracing: Tracing = NoTracing()
        self.verifier = verifier
        self.residency = residency
        self._replays = ReplayWindow()
        self._now = now
        self._retention = RetentionDay(now())
        self._lock = threading.Lock()
        self._expiring = threading.Lock()
        self._layout: EngineLayout | None = None
        self._cell_bytes = 0
        keys.on_taken = self._taken

    @property
    def layout(self) -> EngineLayout | None:
        """The engine's layout, once one said hello."""
        return self._layout

    def attach_engine(self, layout: EngineLayout) -> None:
        """An engine process said hello.

        Raises:
            ProtocolError: another engine with another layout is still connected.
        """
        with self._lock:
            if self._layout is not None and not self._layout.accepts(layout):
                raise ProtocolError(
                    "an engine with another model or layout is still connected to this daemon",
                    hint="stop it first; one instance serves one engine",
                )
            self._layout = layout
        self.cache.serve(layout.fingerprint)

    def attach_worker(self, shape: WorkerShape) -> None:
        """A worker said hello: make memory cells that hold its blocks.

        Raises:
            ProtocolError: a block does not fit the memory tier.
        """
        with self._lock:
            if shape.cell_bytes > self._cell_bytes:
                try:
                    self.cache.carve(shape.cell_bytes)
                except ValueError as error:
                    raise ProtocolError(
                        f"a sealed block of {shape.cell_bytes} bytes does not fit the memory tier",
                        hint="raise instance.memory_bytes or lower engine.block_size",
                    ) from error
                self._cell_bytes = shape.cell_bytes

    def detach_engine(self) -> list[Handle]:
        """The last engine process is gone: its handles end; sealed blocks stay."""
        with self._lock:
            self._layout = None
        ended = self.handles.clear()
        for handle in ended:
            handle.end()
        return ended

    def open_session(self, tenant: str, session: str) -> SessionGrant:
        """The salt of a session; its keys are made on first use.

        Raises:
            KvrunError: too many sessions (status 429), keys that cannot be had, or a tenant that
                may not be processed here (403). It has a reference from then on, so that the
                registry can know it.
        """
        if self.stateless:
            # Nobody has a reference here, so nothing can be known of anybody.
            self._refuse_misplaced("", "")
            return SessionGrant(secrets.token_urlsafe(32), 0)
        self._refuse_erased(tenant, session)
        keys = self.keys.find(tenant, session)
        if keys is None:
            keys = self.keys.acquire(tenant, session)
            self.journal.key_created(keys)
        self._refuse_misplaced(keys.tenant_ref, keys.session_ref)
        layout = self._layout
        if layout is not None:
            packs = SessionPackKeys(keys, layout.fingerprint)
            with contextlib.suppress(SessionDroppedError):
                self.cache.prepare(
                    keys.tenant_ref, keys.session_ref, epoch=keys.generation, packs=packs
                )
        return SessionGrant(keys.salt, keys.generation)

    def match(self, message: Match) -> Matched:
        """Admit or deny a request, and say which of its blocks exist."""
        with self.tracing.span("kvrun.match", message.traceparent, SpanKind.INTERNAL) as trace:
            answer = self._match(message, trace)
            found = sum(len(tiers) - tiers.count(0) for tiers in answer.tiers)
            trace.note(verdict=answer.verdict.value, blocks=found)
            return answer

    def _match(self, message: Match, trace: Trace) -> Matched:
        try:
            handle = self._admit(message)
        except KvrunError as error:
            denied = self._deny(message, error)
            self.finished(message.handle)
            return denied
        if handle is None:
            return Matched(message.request, Verdict.ADMITTED, "stateless", 0, ())
        trace.note(request_id=handle.request_id)
        try:
            tiers = self._find_blocks(message, handle)
        except KvrunError as error:
            denied = self._deny(message, error)
            self.finished(handle.number)
            return denied
        return Matched(message.request, Verdict.ADMITTED, "", handle.number, tiers)

    def started(self, number: int, engine_tokens: int, loaded_tokens: int) -> None:
        """The engine scheduled a request with so many tokens of its own cache."""
        handle = self.handles.live(number)
        if handle is None:
            return
        layout = self._layout
        if layout is None or handle.started or engine_tokens < 0:
            return
        reused = handle.start(
            engine_tokens, loaded_tokens, [group.tokens_per_block for group in layout.groups]
        )
        self.handles.totals.reused(*reused)
        if engine_tokens:
            self.journal.reused(handle, engine_tokens)

    def finished(self, number: int) -> None:
        """A request ended."""
        handle = self.handles.finish(number, self._now())
        if handle is not None:
            handle.end()

    def revoke(self, covers: Callable[[str, str], bool]) -> list[int]:
        """End the requests of some sessions and tell the schedulers; the handles they had."""
        ended = self.handles.revoke(covers)
        self._revoke(ended)
        return [handle.number for handle in ended]

    def revoke_destroyed(self) -> list[int]:
        """End the requests whose session's key is gone; the handles they had."""
        ended = self.handles.revoke_destroyed()
        self._revoke(ended)
        return [handle.number for handle in ended]

    def expire(self) -> int:
        """Destroy the keys that were idle or old for too long; how many there were."""
        with self._expiring:
            expired = self.keys.destroy_expired()
            self._let_go(expired)
            self._summarize()
        return len(expired)

    def forget_expired(self) -> None:
        """Returns when engines were told of every expired key that was destroyed until now."""
        with self._expiring:
            self._let_go(self.keys.destroyed_by_use())

    def _let_go(self, expired: list[DestroyedKey]) -> None:
        self.revoke_destroyed()
        self._retention.add(expired)
        owners = [page_owner(key.salt) for key in expired if key.salt]
        if owners:
            self.on_expired(owners)
        for key in expired:
            if not key.session_ref:
                continue
            self.cache.drop(key.tenant_ref, key.session_ref, epoch=key.generation)
            self.journal.key_destroyed(
                key.tenant_ref, key.session_ref, key.key_id, Event.EXPIRED, key.reason
            )

    def stop(self) -> None:
        """The daemon stops: what retention did today goes into the log."""
        self._summarize(stopping=True)

    def _taken(
        self, keys: Sequence[SessionKeys], owners: Sequence[bytes], tell: Callable[[Pages], None]
    ) -> None:
        """Another instance had these destroyed, and puts that on record."""
        pages = dict.fromkeys((*owners, *(page_owner(key.salt) for key in keys)))
        self.on_taken(self.revoke_destroyed(), list(pages), tell)
        for key in keys:
            self.cache.drop(key.tenant_ref, key.session_ref, epoch=key.generation)

    def _summarize(self, *, stopping: bool = False) -> None:
        living = self.keys.session_count
        summary = self._retention.summary(self._now(), living, stopping=stopping)
        if summary:
            self.journal.retention(summary)

    def _refuse_erased(self, tenant: str, session: str) -> None:
        if self.is_being_erased(tenant, session):
            raise ErasureUnderWayError("the session is being erased")

    def _refuse_misplaced(self, tenant_ref: str, session_ref: str) -> None:
        residency = self.residency
        if not residency.may_serve(tenant_ref, session_ref):
            elsewhere = residency.elsewhere.regions(tenant_ref)
            raise ResidencyDeniedError(residency.facts.region, elsewhere)

    def _revoke(self, ended: list[Handle]) -> None:
        for handle in ended:
            handle.end()
        if ended:
            self.on_revoked([handle.number for handle in ended])

    def _admit(self, message: Match) -> Handle | None:
        if message.handle:
            handle = self.handles.live(message.handle)
            if handle is None:
                raise DeniedError(Denial.KEY_DESTROYED, "the request's handle is no longer valid")
            # What follows reuses the engine's own pages too: not while the log cannot be written.
            self.journal.commit()
            handle.unpin()
            handle.opened.clear()
            return handle
        claim = self.verifier.verify(message.claim)
        if claim.salt != message.salt:
            raise DeniedError(Denial.CLAIM, "the engine's salt is not the claim's")
        with self._lock:
            fresh = self._replays.admit(claim, self._now())
        if not fresh:
            raise DeniedError(Denial.REPLAYED, "the claim was used more often than it allows")
        if self.stateless:
            if claim.generation != 0:
                # Made before the deployment became stateless: its salt may name stored blocks.
                raise DeniedError(Denial.CLAIM, "the claim is for a session that is kept")
            if not self.residency.placement("").allows(ResidencyTier.GPU):
                raise ResidencyDeniedError(self.residency.facts.region)
            self.journal.admitted_stateless(claim.request_id)
            self.handles.totals.admitted(message.prompt_tokens)
            return None
        self._refuse_erased(claim.tenant, claim.session)
        keys = self.keys.find(claim.tenant, claim.session)
        if keys is None or keys.generation != claim.generation or keys.salt != claim.salt:
            # The gateway does not know yet, after an expiry for example, or missed the news.
            self.on_stale_claim(claim.tenant, claim.session)
            raise DeniedError(
                Denial.KEY_DESTROYED, "the session's key was destroyed after the claim was made"
            )
        layout = self._layout
        if layout is None:
            raise DeniedError(Denial.NO_ENGINE, "no engine is connected")
        placement = self.residency.placement(keys.tenant_ref)
        if not placement.allows(ResidencyTier.GPU):
            raise ResidencyDeniedError(self.residency.facts.region)
        keys.touch(self._now())
        cache = self.cache.session(
            keys.tenant_ref,
            keys.session_ref,
            epoch=keys.generation,
            packs=SessionPackKeys(keys, layout.fingerprint),
        )
        handle = self.handles.add(claim.request_id, keys, SessionBlocks(keys, layout), cache)
        handle.placement = placement
        handle.reuse.prompt_tokens += message.prompt_tokens
        try:
            self.journal.admitted(handle)
        except KvrunError:
            self.handles.finish(handle.number, self._now())
            raise
        cache.begin(handle.number)
        self.handles.totals.admitted(message.prompt_tokens)
        handle.traceparent = message.traceparent
        return handle

    def _find_blocks(self, message: Match, handle: Handle) -> tuple[bytes, ...]:
        layout = self._layout
        if layout is None:
            raise DeniedError(Denial.NO_ENGINE, "no engine is connected")
        size = message.hash_bytes
        if not message.hashes:
            return ()
        if not 1 <= size <= _MAX_HASH_BYTES or len(message.hashes) % size:
            raise ProtocolError(
                f"{len(message.hashes)} bytes are not block hashes of {size} bytes",
                hint=f"hashes of 1 to {_MAX_HASH_BYTES} bytes are allowed",
            )
        hashes = len(message.hashes) // size
        found: list[bytes] = []
        for group, shape in enumerate(layout.groups):
            names_by_rank: list[list[bytes]] = [[] for _ in range(layout.world_size)]
            for index in range(layout.blocks_in(hashes, group)):
                at = ((index + 1) * shape.hashes_per_chunk - 1) * size
                block_hash = message.hashes[at : at + size]
                for rank, names in enumerate(names_by_rank):
                    names.append(handle.blocks.name(block_hash, group, rank))
            tiers = []
            for rank, names in enumerate(names_by_rank):
                handle.chains[group, rank] = dict(enumerate(names))
                handle.cache.pin(names)
                handle.pinned.extend(names)
                tiers.append(allowed_tiers(handle.placement, handle.cache.match(names)))
                if Tier.OBJECT in tiers[-1]:
                    handle.cache.prefetch(names)
            found.append(_in_all_ranks(tiers))
        return tuple(found)

    def _deny(self, message: Match, error: KvrunError) -> Matched:
        request_id, reason = self._request_id(message), error.message
        self.handles.totals.denied(denial_of(error))
        self.handles.deny(request_id, reason)
        self.journal.denied(request_id, reason)
        _log.info("request %s was denied the cache: %s", request_id or "?", reason)
        return Matched(message.request, Verdict.DENIED, reason, 0, ())

    def _request_id(self, message: Match) -> str:
        handle = self.handles.live(message.handle) if message.handle else None
        if handle is not None:
            return handle.request_id
        try:
            return self.verifier.verify(message.claim).request_id
        except ClaimError:
            return ""


def _in_all_ranks(tiers: list[bytes]) -> bytes:
    """A block exists where every rank has it; the slowest tier counts."""
    if len(tiers) == 1:
        return tiers[0]
    return bytes(0 if 0 in column else max(column) for column in zip(*tiers, strict=True))
