"""What a running daemon says of its use: totals, tenants and sessions with what they hold.

Tenants and sessions are listed by reference. Their ids are told only to who gives a reason, and
each one that is told is on record in the log first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from kvrun.cache.handles import HeldByTier
from kvrun.instance.admin import UnknownOperationError
from kvrun.instance.auditing import check_reason
from kvrun.instance.instance import Instance
from kvrun.keys.listing import SessionListing, SessionsAsked, TenantInfo, TenantsAsked
from kvrun.keys.session import SessionInfo

MAX_ROWS = 200
MAX_IDS = 1000
_Ids = Annotated[list[str], msgspec.Meta(max_length=MAX_IDS)]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The instance as a whole. Sizes in bytes; requests and tokens since the start.

    ``disk_blocks`` and what is in Storage (``object_``) are of sessions opened since then.
    ``context_window`` is the connected engine's in tokens, 0 for none.
    """

    engine: str
    running_requests: int
    admitted_requests: int
    sessions: int
    prompt_tokens: int
    gpu_tokens: int
    memory_tokens: int
    disk_tokens: int
    object_tokens: int
    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    object_blocks: int
    object_bytes: int
    object_available: bool
    context_window: int


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant. ``tenant`` is empty unless it was asked for; times in seconds since 1970."""

    tenant_ref: str
    tenant: str
    sessions: int
    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    object_blocks: int
    object_bytes: int
    last_used_at: float
    expires_at: float


class TenantList(msgspec.Struct, frozen=True):
    """Some tenants, the last used first, and how many there are in all."""

    rows: list[TenantUsage]
    total: int


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One session; as of a tenant."""

    session_ref: str
    session: str
    generation: int
    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    object_blocks: int
    object_bytes: int
    created_at: float
    last_used_at: float
    expires_at: float


class SessionList(msgspec.Struct, frozen=True):
    """Some of a tenant's sessions, the last used first, and how many there are."""

    tenant_ref: str
    rows: list[SessionUsage]
    total: int


@dataclass(frozen=True, slots=True)
class KeptUse:
    """What tenants and sessions keep. ``measure`` says what a session holds, by references;
    ``looked_up`` puts on record that tenants' ids are told, by their references, and why."""

    listing: SessionListing
    measure: Callable[[str, str], HeldByTier]
    looked_up: Callable[[Sequence[str], str], None]

    def tenants(self, asked: Mapping[str, str]) -> TenantList:
        """Tenants: all, or with ``query`` the one of that id and those whose reference begins so.

        ``offset`` and ``limit`` (200 at most) cut the list; ``reason`` has ids told and logged.
        Raises LookUpError, AuditUnavailableError.
        """
        query, reason = asked.get("query", ""), self._reason(asked)
        offset, limit = _window(asked)
        found = self.listing.tenants(
            TenantsAsked(
                ids=(query,),
                begins=query.lower(),
                offset=offset,
                limit=limit,
                named=bool(reason),
            )
        )
        if reason and found.rows:
            self.looked_up([row.tenant_ref for row in found.rows], reason)
        rows = [self._tenant(row, told=bool(reason)) for row in found.rows]
        return TenantList(rows, found.total)

    def sessions(self, asked: Mapping[str, str]) -> SessionList:
        """The sessions of one tenant, by its id (``tenant``) or its whole reference (``ref``)."""
        tenant, ref = asked.get("tenant", ""), asked.get("ref", "").lower()
        if not tenant and not ref:
            raise UnknownOperationError("the operation needs an argument 'tenant' or 'ref'")
        reason = self._reason(asked)
        offset, limit = _window(asked)
        found = self.listing.sessions(
            SessionsAsked(tenant=tenant, ref=ref, offset=offset, limit=limit, named=bool(reason))
        )
        if reason and found.total:
            self.looked_up([found.tenant_ref], reason)
        return SessionList(found.tenant_ref, list(map(self._session, found.rows)), found.total)

    def refs(self, asked: Mapping[str, str]) -> dict[str, str]:
        """The references of those tenants that exist, by what was asked.

        That is a JSON list of ids (``tenants``), or of references (``refs``).
        """
        name = "refs" if "refs" in asked else "tenants"
        try:
            wanted = tuple(msgspec.json.decode(asked.get(name, ""), type=_Ids))
        except msgspec.MsgspecError as error:
            raise UnknownOperationError(f"the argument {name!r} is malformed: {error}") from None
        if name == "refs":
            found = self.listing.tenants(TenantsAsked(refs=wanted, limit=MAX_IDS))
            return {row.tenant_ref: row.tenant_ref for row in found.rows}
        found = self.listing.tenants(TenantsAsked(ids=wanted, limit=MAX_IDS))
        return {row.tenant: row.tenant_ref for row in found.rows}

    def _tenant(self, row: TenantInfo, *, told: bool) -> TenantUsage:
        held = [self.measure(row.tenant_ref, session) for session in row.session_refs]
        return TenantUsage(
            tenant_ref=row.tenant_ref,
            tenant=row.tenant if told else "",
            sessions=len(row.session_refs),
            memory_blocks=sum(item.memory_blocks for item in held),
            memory_bytes=sum(item.memory_bytes for item in held),
            disk_blocks=sum(item.disk_blocks for item in held),
            disk_bytes=sum(item.disk_bytes for item in held),
            object_blocks=sum(item.object_blocks for item in held),
            object_bytes=sum(item.object_bytes for item in held),
            last_used_at=row.last_used_at,
            expires_at=row.expires_at,
        )

    def _session(self, info: SessionInfo) -> SessionUsage:
        held = self.measure(info.tenant_ref, info.session_ref)
        return SessionUsage(
            session_ref=info.session_ref,
            session=info.session,
            generation=info.generation,
            memory_blocks=held.memory_blocks,
            memory_bytes=held.memory_bytes,
            disk_blocks=held.disk_blocks,
            disk_bytes=held.disk_bytes,
            object_blocks=held.object_blocks,
            object_bytes=held.object_bytes,
            created_at=info.created_at,
            last_used_at=info.last_used_at,
            expires_at=info.expires_at,
        )

    def _reason(self, asked: Mapping[str, str]) -> str:
        return check_reason(asked["reason"]) if asked.get("reason") else ""


@dataclass(frozen=True, slots=True)
class UsageAccess:
    """The operations on one instance."""

    instance: Instance

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the admin service."""
        return {
            "usage": lambda _: self.usage(),
            "usage_tenants": self.kept.tenants,
            "usage_sessions": self.kept.sessions,
            "usage_refs": self.kept.refs,
        }

    @property
    def kept(self) -> KeptUse:
        """What its tenants and sessions keep."""
        instance = self.instance

        def looked_up(tenant_refs: Sequence[str], reason: str) -> None:
            instance.journal.looked_up(tenant_refs, reason, found=True)

        return KeptUse(instance.keys.listing, instance.cache.measure, looked_up)

    def usage(self) -> Usage:
        """The instance as a whole."""
        instance, levels = self.instance, self.instance.cache.levels()
        counts, layout = instance.handles.totals.snapshot(), instance.layout
        return Usage(
            engine=layout.software if layout is not None else "",
            running_requests=sum(handle.finished_at is None for handle in instance.handles),
            admitted_requests=counts.admitted,
            sessions=instance.keys.session_count,
            prompt_tokens=counts.prompt_tokens,
            gpu_tokens=counts.reused["gpu"],
            memory_tokens=counts.reused["memory"],
            disk_tokens=counts.reused["disk"],
            object_tokens=counts.reused["object"],
            memory_blocks=levels.memory_blocks,
            memory_bytes=levels.memory_bytes,
            disk_blocks=levels.disk_blocks,
            disk_bytes=levels.disk_bytes,
            object_blocks=levels.object_blocks,
            object_bytes=levels.object_bytes,
            object_available=levels.object_available,
            context_window=layout.context_window if layout is not None else 0,
        )


def _window(asked: Mapping[str, str]) -> tuple[int, int]:
    return _number(asked, "offset", 0), min(_number(asked, "limit", 50), MAX_ROWS)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UnknownOperationError(f"the argument {name!r} is no number: {text[:40]!r}")
    return int(text)
