"""What the daemon writes into the audit log, in the log's words.

One place decides what is durable before it takes effect: an admission, an open and a seal are;
evictions and the like are written soon. No method takes a prompt, a token, a block hash or a
tenant's name.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

from kvrun.audit.errors import AuditError, AuditUnavailableError
from kvrun.audit.merkle import blocks_root
from kvrun.audit.record import AuditEvent, Event, Outcome
from kvrun.audit.writer import AuditLog
from kvrun.cache.events import CacheEvent, CacheEventKind, Tier
from kvrun.errors import KvrunError
from kvrun.instance.handles import Handle
from kvrun.keys.session import SessionKeys

POLICY_REVISION = "builtin-1"
_ENGINE_TIER = "gpu"
_MAX_OWED = 65_536
_TIER_NAMES = {Tier.MISS: "", Tier.MEMORY: "memory", Tier.DISK: "disk"}
_CACHE_EVENTS = {
    CacheEventKind.EVICTED: Event.EVICTED,
    CacheEventKind.PERSISTED: Event.PERSISTED,
    CacheEventKind.RESTORED: Event.RESTORED,
}


class Journal:
    """Writes the records of one deployment."""

    def __init__(self, log: AuditLog, workspace: str, deployment: str) -> None:
        self._log = log
        self._workspace = workspace
        self._deployment = deployment
        self._owed: deque[AuditEvent] = deque(maxlen=_MAX_OWED)

    @property
    def available(self) -> bool:
        """Whether what happens now can be recorded."""
        return self._log.available

    def admitted(self, handle: Handle) -> None:
        """A request may use the cache. Durable.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        self._log.append_durable(self._of(handle, Event.ALLOCATED, tier=_ENGINE_TIER))

    def admitted_stateless(self, request_id: str) -> None:
        """A request of a stateless deployment may use its own pages. Durable.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        self._log.append_durable(
            AuditEvent(
                event=Event.ALLOCATED,
                request_id=request_id,
                workspace=self._workspace,
                deployment=self._deployment,
                tier=_ENGINE_TIER,
                policy_revision=POLICY_REVISION,
            )
        )

    def denied(self, request_id: str, reason: str) -> None:
        """A request may not use the cache."""
        self._soon(
            AuditEvent(
                event=Event.DENIED,
                outcome=Outcome.DENIED,
                request_id=request_id,
                workspace=self._workspace,
                deployment=self._deployment,
                reason=_printable(reason),
            )
        )

    def reused(self, handle: Handle, tokens: int) -> None:
        """The engine reused its own pages for a request."""
        self._soon(self._of(handle, Event.REUSED, tier=_ENGINE_TIER, tokens=tokens))

    def opening(self, handle: Handle, names: Sequence[bytes], tiers: bytes) -> None:
        """Blocks are about to be opened, each from its tier. Durable before any plaintext appears.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        events = []
        for tier in (Tier.MEMORY, Tier.DISK):
            of_tier = [name for name, at in zip(names, tiers, strict=True) if at == tier]
            if of_tier:
                events.append(
                    self._of(
                        handle,
                        Event.OPENED,
                        tier=_TIER_NAMES[tier],
                        blocks=len(of_tier),
                        blocks_root=blocks_root(of_tier),
                    )
                )
        self._log.append_durable(*events)

    def sealed(self, handle: Handle, names: Sequence[bytes], size_bytes: int) -> None:
        """Blocks were sealed into the memory tier. Durable before they can be found.

        Raises:
            AuditUnavailableError: the log cannot be written and the mode requires it.
        """
        self._log.append_durable(
            self._of(
                handle,
                Event.SEALED,
                tier="memory",
                blocks=len(names),
                size_bytes=size_bytes,
                blocks_root=blocks_root(names),
            )
        )

    def integrity_failure(self, handle: Handle, name: bytes, tier: Tier, error: KvrunError) -> None:
        """A block did not open and was quarantined."""
        event = self._of(
            handle,
            Event.INTEGRITY_FAILURE,
            tier=_TIER_NAMES[tier],
            blocks=1,
            blocks_root=blocks_root([name]),
            outcome=Outcome.FAILED,
            reason=type(error).__name__,
        )
        self._surely(event)

    def key_created(self, keys: SessionKeys, request_id: str = "") -> None:
        """A session got its key."""
        self._soon(self._of_keys(keys, Event.KEY_CREATED, request_id))

    def key_destroyed(
        self, tenant_ref: str, session_ref: str, key_id: str, event: Event, reason: str
    ) -> None:
        """A session's key is gone. Destruction never waits for a log that cannot be written."""
        for kind in (Event.KEY_DESTROYED, event):
            self._surely(
                AuditEvent(
                    event=kind,
                    workspace=self._workspace,
                    deployment=self._deployment,
                    tenant_ref=tenant_ref,
                    session_ref=session_ref,
                    key_id=key_id,
                    policy_revision=POLICY_REVISION,
                    reason=_printable(reason),
                )
            )

    def cache_event(self, event: CacheEvent) -> None:
        """Something the cache did by itself."""
        kind = _CACHE_EVENTS.get(event.kind)
        if kind is None or not event.session_ref:
            return
        moved_to = {Event.PERSISTED: "disk", Event.RESTORED: "memory"}.get(kind, "")
        tier = "memory" if kind is Event.PERSISTED else _TIER_NAMES[event.tier]
        self._soon(
            AuditEvent(
                event=kind,
                workspace=self._workspace,
                deployment=self._deployment,
                tenant_ref=event.tenant_ref,
                session_ref=event.session_ref,
                tier=tier,
                tier_to=moved_to,
                blocks=event.blocks,
                bytes=event.bytes,
                policy_revision=POLICY_REVISION,
                reason=_printable(event.reason),
            )
        )

    def deployment_event(self, event: Event, reason: str = "") -> None:
        """The deployment's engine came or went."""
        self._soon(
            AuditEvent(
                event=event,
                workspace=self._workspace,
                deployment=self._deployment,
                reason=_printable(reason),
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
            except AuditError:
                return
            self._owed.popleft()

    def _surely(self, event: AuditEvent) -> None:
        """Durable where the log allows it, else written when it does again."""
        try:
            self._log.append(event)
        except AuditUnavailableError:
            self._owed.append(event)
            return
        # What was taken in is kept by the log, also when it cannot be synced now.
        with contextlib.suppress(AuditError):
            self._log.commit()

    def _soon(self, event: AuditEvent) -> None:
        with contextlib.suppress(AuditError):
            self._log.append(event)

    def _of(
        self,
        handle: Handle,
        event: Event,
        *,
        tier: str,
        blocks: int = 0,
        size_bytes: int = 0,
        tokens: int = 0,
        blocks_root: str = "",
        outcome: Outcome = Outcome.OK,
        reason: str = "",
    ) -> AuditEvent:
        return AuditEvent(
            event=event,
            outcome=outcome,
            request_id=handle.request_id,
            workspace=self._workspace,
            deployment=self._deployment,
            tenant_ref=handle.tenant_ref,
            session_ref=handle.session_ref,
            tier=tier,
            blocks=blocks,
            bytes=size_bytes,
            tokens=tokens,
            policy_revision=POLICY_REVISION,
            key_id=handle.keys.key_id,
            blocks_root=blocks_root,
            reason=reason,
        )

    def _of_keys(self, keys: SessionKeys, event: Event, request_id: str) -> AuditEvent:
        return AuditEvent(
            event=event,
            request_id=request_id,
            workspace=self._workspace,
            deployment=self._deployment,
            tenant_ref=keys.tenant_ref,
            session_ref=keys.session_ref,
            key_id=keys.key_id,
            policy_revision=POLICY_REVISION,
        )


def _printable(text: str) -> str:
    return "".join(char for char in text if " " <= char <= "~")[:200]
