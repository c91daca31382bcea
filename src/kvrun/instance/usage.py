"""What a running daemon says of its use: totals, tenants and sessions with what they hold.

Tenants and sessions are listed by reference. Their ids are told only to who gives a reason, and
each one that is told is on record in the log first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from kvrun.instance.admin import UnknownOperationError
from kvrun.instance.auditing import check_reason
from kvrun.instance.instance import Instance
from kvrun.keys.limits import KeyLimits
from kvrun.keys.session import SessionInfo

MAX_ROWS = 200
MAX_IDS = 1000
_Ids = Annotated[list[str], msgspec.Meta(max_length=MAX_IDS)]
_T = TypeVar("_T")


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
class UsageAccess:
    """The operations on one instance. ``limits`` are those of its keys."""

    instance: Instance
    limits: KeyLimits

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the admin service."""
        return {
            "usage": lambda _: self.usage(),
            "usage_tenants": self.tenants,
            "usage_sessions": self.sessions,
            "usage_refs": self.refs,
        }

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

    def tenants(self, asked: Mapping[str, str]) -> TenantList:
        """Tenants: all, or with ``query`` the one of that id and those whose reference begins so.

        ``offset`` and ``limit`` (200 at most) cut the list; ``reason`` has ids told and logged.
        Raises LookUpError, AuditUnavailableError.
        """
        query = asked.get("query", "")
        found: dict[str, list[SessionInfo]] = {}
        for info in self.instance.keys.sessions():
            if info.tenant == query or info.tenant_ref.startswith(query.lower()):
                found.setdefault(info.tenant_ref, []).append(info)
        ordered = sorted(found.values(), key=lambda infos: (-_last(infos), infos[0].tenant_ref))
        reason = self._reason(asked)
        rows = [self._tenant(infos, reason) for infos in _cut(ordered, asked)]
        return TenantList(rows, len(found))

    def sessions(self, asked: Mapping[str, str]) -> SessionList:
        """The sessions of one tenant, by its id (``tenant``) or its whole reference (``ref``)."""
        tenant, ref = asked.get("tenant", ""), asked.get("ref", "").lower()
        if not tenant and not ref:
            raise UnknownOperationError("the operation needs an argument 'tenant' or 'ref'")
        found = [
            info
            for info in self.instance.keys.sessions()
            if ref in ("", info.tenant_ref) and tenant in ("", info.tenant)
        ]
        found.sort(key=lambda info: (-info.last_used_at, info.session_ref))
        reason = self._reason(asked)
        if reason and found:
            self.instance.journal.looked_up(found[0].tenant_ref, reason, found=True)
        rows = [self._session(info, told=bool(reason)) for info in _cut(found, asked)]
        return SessionList(found[0].tenant_ref if found else "", rows, len(found))

    def refs(self, asked: Mapping[str, str]) -> dict[str, str]:
        """The references of those tenants that exist, by what was asked.

        That is a JSON list of ids (``tenants``), or of references (``refs``).
        """
        name = "refs" if "refs" in asked else "tenants"
        try:
            wanted = set(msgspec.json.decode(asked.get(name, ""), type=_Ids))
        except msgspec.MsgspecError as error:
            raise UnknownOperationError(f"the argument {name!r} is malformed: {error}") from None
        found: dict[str, str] = {}
        for info in self.instance.keys.sessions():
            key = info.tenant_ref if name == "refs" else info.tenant
            if key in wanted:
                found[key] = info.tenant_ref
        return found

    def _tenant(self, infos: list[SessionInfo], reason: str) -> TenantUsage:
        reference = infos[0].tenant_ref
        if reason:
            self.instance.journal.looked_up(reference, reason, found=True)
        held = [self.instance.cache.measure(reference, info.session_ref) for info in infos]
        return TenantUsage(
            tenant_ref=reference,
            tenant=infos[0].tenant if reason else "",
            sessions=len(infos),
            memory_blocks=sum(item.memory_blocks for item in held),
            memory_bytes=sum(item.memory_bytes for item in held),
            disk_blocks=sum(item.disk_blocks for item in held),
            disk_bytes=sum(item.disk_bytes for item in held),
            object_blocks=sum(item.object_blocks for item in held),
            object_bytes=sum(item.object_bytes for item in held),
            last_used_at=_last(infos),
            expires_at=max(self._expires_at(info) for info in infos),
        )

    def _session(self, info: SessionInfo, *, told: bool) -> SessionUsage:
        held = self.instance.cache.measure(info.tenant_ref, info.session_ref)
        return SessionUsage(
            session_ref=info.session_ref,
            session=info.session if told else "",
            generation=info.generation,
            memory_blocks=held.memory_blocks,
            memory_bytes=held.memory_bytes,
            disk_blocks=held.disk_blocks,
            disk_bytes=held.disk_bytes,
            object_blocks=held.object_blocks,
            object_bytes=held.object_bytes,
            created_at=info.created_at,
            last_used_at=info.last_used_at,
            expires_at=self._expires_at(info),
        )

    def _expires_at(self, info: SessionInfo) -> float:
        limits, ends = self.limits, [float(2**53)]
        if limits.idle_timeout_s is not None:
            ends.append(info.last_used_at + limits.idle_timeout_s)
        if limits.absolute_timeout_s is not None:
            ends.append(info.created_at + limits.absolute_timeout_s)
        return min(ends)

    def _reason(self, asked: Mapping[str, str]) -> str:
        return check_reason(asked["reason"]) if asked.get("reason") else ""


def _last(infos: Iterable[SessionInfo]) -> float:
    return max(info.last_used_at for info in infos)


def _cut(found: list[_T], asked: Mapping[str, str]) -> list[_T]:
    offset, limit = _number(asked, "offset", 0), _number(asked, "limit", 50)
    return found[offset : offset + min(limit, MAX_ROWS)]


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UnknownOperationError(f"the argument {name!r} is no number: {text[:40]!r}")
    return int(text)
