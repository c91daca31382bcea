"""Asking a deployment about its use: its daemon, or its folder's keys where none runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from kvrun.config import KvrunConfig
from kvrun.deployments.errors import UnreachableError
from kvrun.errors import KvrunError
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.parts import folder_lock, open_parts
from kvrun.instance.usage import (
    MAX_IDS,
    MAX_ROWS,
    SessionList,
    SessionUsage,
    TenantList,
    Usage,
    UsageAccess,
)
from kvrun.keys.opening import key_limits
from kvrun.launch.admin import NotRunningError, ask_daemon
from kvrun.process import harden_process

_MEMORY_BYTES = 1 << 20
_TIMEOUT_S = 10.0
_T = TypeVar("_T")


def usage(config: KvrunConfig) -> Usage | None:
    """The instance as a whole; None where no daemon answers."""
    try:
        return msgspec.json.decode(ask_daemon(config, "usage", timeout_s=_TIMEOUT_S), type=Usage)
    except (KvrunError, OSError, msgspec.MsgspecError):
        return None


class _Status(msgspec.Struct):
    protections: dict[str, str]


def protections(config: KvrunConfig) -> dict[str, str]:
    """How well keys, memory and staging are protected, by name; nothing where nobody answers."""
    try:
        answer = ask_daemon(config, "status", timeout_s=_TIMEOUT_S)
        return msgspec.json.decode(answer, type=_Status).protections
    except (KvrunError, OSError, msgspec.MsgspecError):
        return {}


def tenants(config: KvrunConfig, asked: Mapping[str, str]) -> TenantList:
    """See ``UsageAccess.tenants``. Raises UnreachableError, and what the operation raises."""
    return _ask(config, "usage_tenants", asked, TenantList, lambda access: access.tenants(asked))


def sessions(config: KvrunConfig, asked: Mapping[str, str]) -> SessionList:
    """See ``UsageAccess.sessions``. Raises as ``tenants`` does."""
    return _ask(config, "usage_sessions", asked, SessionList, lambda access: access.sessions(asked))


def all_sessions(config: KvrunConfig, tenant: str) -> SessionList:
    """Every session of a tenant, by its id, of as many as it may have. Raises as ``tenants`` does.

    Others may begin and end meanwhile: each that is found is counted once.
    """
    reference, total = "", 0
    rows: dict[str, SessionUsage] = {}
    for offset in range(0, config.keys.max_sessions_per_tenant, MAX_ROWS):
        asked = {"tenant": tenant, "offset": str(offset), "limit": str(MAX_ROWS)}
        found = sessions(config, asked)
        rows |= {row.session_ref: row for row in found.rows}
        reference, total = found.tenant_ref or reference, max(total, found.total)
        if offset + MAX_ROWS >= found.total:
            break
    return SessionList(reference, list(rows.values()), max(total, len(rows)))


def refs(config: KvrunConfig, ids: Sequence[str]) -> dict[str, str]:
    """The references of the tenants that exist, by id. Raises as ``tenants`` does."""
    found: dict[str, str] = {}
    for start in range(0, len(ids), MAX_IDS):
        asked = {"tenants": msgspec.json.encode(ids[start : start + MAX_IDS]).decode()}
        found |= _ask(config, "usage_refs", asked, dict[str, str], _refs_of(asked))
    return found


def living(config: KvrunConfig, tenant_refs: Collection[str]) -> frozenset[str] | None:
    """Those of at most MAX_IDS references whose tenants have a session; None where no daemon
    answers."""
    asked = {"refs": msgspec.json.encode(list(tenant_refs)).decode()}
    try:
        answer = ask_daemon(config, "usage_refs", asked, timeout_s=_TIMEOUT_S)
        return frozenset(msgspec.json.decode(answer, type=dict[str, str]))
    except (KvrunError, OSError, msgspec.MsgspecError):
        return None


def _refs_of(asked: Mapping[str, str]) -> Callable[[UsageAccess], dict[str, str]]:
    return lambda access: access.refs(asked)


def _ask(
    config: KvrunConfig,
    operation: str,
    asked: Mapping[str, str],
    kind: type[_T],
    here: Callable[[UsageAccess], _T],
) -> _T:
    try:
        answer = ask_daemon(config, operation, asked, timeout_s=_TIMEOUT_S)
        return msgspec.json.decode(answer, type=kind)
    except (NotRunningError, InstanceUnavailableError) as error:
        away = error.message
    except msgspec.MsgspecError as error:
        raise UnreachableError(f"the daemon gave no answer that could be read: {error}") from None
    if not config.layout.keys.is_dir():
        raise UnreachableError("it never ran, or it is deleted: there are no keys")
    harden_process()  # before keys are read
    with ExitStack() as opened:
        try:
            opened.enter_context(folder_lock(config.layout.data_dir))
            parts = opened.enter_context(open_parts(config, memory_bytes=_MEMORY_BYTES))
        except KvrunError as error:
            # It may be starting or stopping right now.
            why = f"{away}; and its keys cannot be opened: {error.message}"
            raise UnreachableError(why) from None
        return here(UsageAccess(parts.instance, key_limits(config)))
