"""What the daemon writes into the audit log, in the log's words.

One place decides what is durable before it takes effect: an admission, an open and a seal are;
evictions and the like are written soon. No method takes a prompt, a token, a block hash or a
tenant's name.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from kvrun.audit.decisions import DECISION_PREFIX
from kvrun.audit.errors import AuditError, AuditUnavailableError
from kvrun.audit.merkle import blocks_root
from kvrun.audit.record import AuditEvent, Event, Outcome
from kvrun.audit.writer import AuditLog
from kvrun.cache.events import CacheEvent, CacheEventKind, Tier
from kvrun.errors import KvrunError
from kvrun.instance.basis import basis_in
from kvrun.instance.handles import Handle
from kvrun.instance.refusals import Refusal
from kvrun.keys.session import SessionKeys
from kvrun.policy.compile import BUILTIN_REVISION
from kvrun.policy.document import Tier as PolicyTier

_ENGINE_TIER = "gpu"
_MAX_OWED = 65_536
_log = logging.getLogger(__name__)
_TIER_NAMES = {Tier.MISS: "", Tier.MEMORY: "memory", Tier.DISK: "disk", Tier.OBJECT: "object"}
_CACHE_EVENTS = {
    CacheEventKind.EVICTED: Event.EVICTED,
    CacheEventKind.PERSISTED: Event.PERSISTED,
    CacheEventKind.RESTORED: Event.RESTORED,
    CacheEventKind.EXPIRED: Event.EXPIRED,
}


class Journal:
    """Writes the records of one deployment."""

    def __init__(self, log: AuditLog, workspace: str, deployment: str) -> None:
        self._log = log
        self._workspace = workspace
        self._deployment = deployment
        self._owed: deque[AuditEvent] = deque()
        self.policy_revision = BUILTIN_REVISION

    @property
    def available(self) -> bool:
        """Whether what happens now can be recorded."""
        return self._log.available

    @property
    def owed(self) -> int:
        """How many records wait until the log can be written again."""
        return len(self._owed)

    def admitted(self, handle: Handle) -> None:
        """A request may use the cache. Durable.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        reason = basis_in(handle.placement, PolicyTier.GPU).reason
        self._log.append_durable(
            self._event(Event.ALLOCATED, handle=handle, tier=_ENGINE_TIER, reason=reason)
        )

    def admitted_stateless(self, request_id: str) -> None:
        """A request of a stateless deployment may use its own pages. Durable.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        self._log.append_durable(
            self._event(Event.ALLOCATED, request_id=request_id, tier=_ENGINE_TIER)
        )

    def denied(self, request_id: str, reason: str) -> None:
        """A request may not use the cache."""
        self._soon(
            self._event(Event.DENIED, outcome=Outcome.DENIED, request_id=request_id, reason=reason)
        )

    def reused(self, handle: Handle, tokens: int) -> None:
        """The engine reused its own pages for a request."""
        self._soon(self._event(Event.REUSED, handle=handle, tier=_ENGINE_TIER, tokens=tokens))

    def opening(self, handle: Handle, names: Sequence[bytes], tiers: bytes) -> None:
        """Blocks are about to be opened, each from its tier. Durable before any plaintext appears.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        events = []
        for tier in (Tier.MEMORY, Tier.DISK, Tier.OBJECT):
            of_tier = [name for name, at in zip(names, tiers, strict=True) if at == tier]
            if of_tier:
                events.append(
                    self._event(Event.OPENED, handle=handle, tier=_TIER_NAMES[tier], names=of_tier)
                )
        self._log.append_durable(*events)

    def sealed(self, handle: Handle, names: Sequence[bytes], size_bytes: int) -> None:
        """Blocks were sealed into the memory tier. Durable before they can be found.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        self._log.append_durable(
            self._event(
                Event.SEALED,
                handle=handle,
                tier="memory",
                names=names,
                size_bytes=size_bytes,
                reason=basis_in(handle.placement, Tier.MEMORY).reason,
            )
        )

    def integrity_failure(self, handle: Handle, name: bytes, tier: Tier, error: KvrunError) -> None:
        """A block did not open and was quarantined."""
        event = self._event(
            Event.INTEGRITY_FAILURE,
            handle=handle,
            tier=_TIER_NAMES[tier],
            names=[name],
            outcome=Outcome.FAILED,
            reason=type(error).__name__,
        )
        self._surely(event)

    def key_created(self, keys: SessionKeys, request_id: str = "") -> None:
        """A session got its key."""
        self._soon(self._event(Event.KEY_CREATED, keys=keys, request_id=request_id))

    def retention(self, summary: str) -> None:
        """A day's retention is over."""
        self._surely(
            AuditEvent(
                event=Event.EXPIRED,
                workspace=self._workspace,
                deployment=self._deployment,
                policy_revision=self.policy_revision,
                reason=_printable(summary),
            )
        )

    def key_rotated(self, what: str) -> None:
        """An operator had a key of the deployment replaced: ``epoch`` or ``root``."""
        self._surely(
            AuditEvent(
                event=Event.KEY_ROTATED,
                workspace=self._workspace,
                deployment=self._deployment,
                policy_revision=self.policy_revision,
                reason=_printable(what),
            )
        )

    def key_folder_lost(self, what: str) -> None:
        """Opening the key folder took keys away that nobody can name any more."""
        self._surely(self._event(Event.KEY_DESTROYED, reason=f"key folder: {what}"))

    def lease_over(self, reason: str) -> None:
        """The right to use any key of the deployment ended."""
        self._surely(
            AuditEvent(
                event=Event.KEY_LEASED,
                outcome=Outcome.FAILED,
                workspace=self._workspace,
                deployment=self._deployment,
                policy_revision=self.policy_revision,
                reason=_printable(reason),
            )
        )

    def key_destroyed(
        self, tenant_ref: str, session_ref: str, key_id: str, event: Event, reason: str
    ) -> None:
        """A session's key is gone. Destruction never waits for a log that cannot be written."""
        self.keys_destroyed([(tenant_ref, session_ref, key_id, reason)], event)

    def keys_destroyed(self, keys: Iterable[tuple[str, str, str, str]], event: Event) -> None:
        """Sessions' keys are gone: (tenant_ref, session_ref, key_id, reason) of each; one sync."""
        for tenant_ref, session_ref, key_id, reason in keys:
            for kind in (Event.KEY_DESTROYED, event):
                self._soon(
                    self._event(
                        kind,
                        tenant_ref=tenant_ref,
                        session_ref=session_ref,
                        key_id=key_id,
                        reason=reason,
                    )
                )
        with contextlib.suppress(AuditError):
            self._log.commit()

    def cache_event(self, event: CacheEvent) -> None:
        """Something the cache did by itself."""
        kind = _CACHE_EVENTS.get(event.kind)
        if kind is None or not event.session_ref:
            return
        self._soon(
            self._event(
                kind,
                tenant_ref=event.tenant_ref,
                session_ref=event.session_ref,
                tier="memory" if kind is Event.PERSISTED else _TIER_NAMES[event.tier],
                tier_to={
                    Event.PERSISTED: _TIER_NAMES[event.tier],
                    Event.RESTORED: "memory",
                }.get(kind, ""),
                blocks=event.blocks,
                size_bytes=event.bytes,
                reason=event.reason,
                revision=event.revision,
            )
        )

    def deployment_event(self, event: Event, reason: str = "") -> None:
        """The deployment's engine came or went."""
        self._soon(self._event(event, reason=reason))

    def policy_event(self, event: Event, revision: str, reason: str) -> None:
        """A residency policy became active, or was rejected."""
        failed = event is Event.POLICY_REJECTED
        outcome = Outcome.FAILED if failed else Outcome.OK
        self._surely(self._event(event, revision=revision, reason=reason, outcome=outcome))

    def refused(self, refusals: Iterable[Refusal], unrecorded: int) -> None:
        """The residency policy refused placements; ``unrecorded`` many more have no record."""
        for item in refusals:
            times = f" x{item.count}" if item.count > 1 else ""
            self._soon(
                self._event(
                    Event.DENIED,
                    tenant_ref=item.tenant_ref,
                    session_ref=item.session_ref,
                    tier=item.tier,
                    outcome=Outcome.OK if item.warned else Outcome.DENIED,
                    reason=f"{DECISION_PREFIX}{item.code}{times}",
                    revision=item.revision,
                )
            )
        if unrecorded:
            reason = f"{DECISION_PREFIX}{unrecorded} more placements have no record"
            self._soon(self._event(Event.DENIED, outcome=Outcome.DENIED, reason=reason))

    def looked_up(self, tenant_refs: Sequence[str], reason: str, *, found: bool) -> None:
        """Somebody asked whom references stand for. Durable before the answer.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        outcome = Outcome.OK if found else Outcome.FAILED
        self._log.append_durable(
            *(
                self._event(Event.WHOIS, tenant_ref=tenant_ref, reason=reason, outcome=outcome)
                for tenant_ref in tenant_refs
            )
        )

    def commit(self) -> None:
        """Make everything written so far durable.

        Raises:
            AuditUnavailableError: it cannot be.
        """
        self._log.commit()

    def write_owed(self) -> None:
        """Write what could not be written when it happened; call it every now and then."""
        while self._owed:
            try:
                self._log.append(self._owed[0])
            except AuditUnavailableError:
                return
            except AuditError:
                self._log.lose(1)
            self._owed.popleft()

    def _surely(self, event: AuditEvent) -> None:
        """Durable where the log allows it, else written when it does again."""
        if self._soon(event):
            # What was taken in is kept by the log, also when it cannot be synced now.
            with contextlib.suppress(AuditError):
                self._log.commit()

    def _soon(self, event: AuditEvent) -> bool:
        """Written soon, or when the log can be written again; what cannot be kept is counted.

        Returns whether the log took it in.
        """
        try:
            self._log.append(event)
            return True
        except AuditUnavailableError:
            if len(self._owed) < _MAX_OWED:
                self._owed.append(event)
            else:
                self._log.lose(1)
        except AuditError as error:
            _log.error("a record was lost: %s", error.message)
            self._log.lose(1)
        return False

    def _event(
        self,
        event: Event,
        *,
        handle: Handle | None = None,
        keys: SessionKeys | None = None,
        request_id: str = "",
        tenant_ref: str = "",
        session_ref: str = "",
        key_id: str = "",
        tier: str = "",
        tier_to: str = "",
        names: Sequence[bytes] = (),
        blocks: int = 0,
        size_bytes: int = 0,
        tokens: int = 0,
        outcome: Outcome = Outcome.OK,
        reason: str = "",
        revision: str = "",
    ) -> AuditEvent:
        """Whose it is stands in a handle, in keys or in references; ``names`` name blocks."""
        keys = handle.keys if handle is not None else keys
        return AuditEvent(
            event=event,
            outcome=outcome,
            request_id=handle.request_id if handle is not None else request_id,
            workspace=self._workspace,
            deployment=self._deployment,
            tenant_ref=keys.tenant_ref if keys is not None else tenant_ref,
            session_ref=keys.session_ref if keys is not None else session_ref,
            key_id=keys.key_id if keys is not None else key_id,
            tier=tier,
            tier_to=tier_to,
            blocks=len(names) or blocks,
            bytes=size_bytes,
            tokens=tokens,
            policy_revision=revision
            or (handle.placement.revision if handle is not None else self.policy_revision),
            blocks_root=blocks_root(names) if names else "",
            reason=_printable(reason),
        )


def _printable(text: str) -> str:
    return "".join(char for char in text if " " <= char <= "~")[:200]
