"""Asking a deployment about its use: its daemon, or its folder's keys where none runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import msgspec

from kvrun.config import KvrunConfig
from kvrun.deployments.errors import UnreachableError
from kvrun.deployments.kept_indexes import KeptIndexes, key_files
from kvrun.errors import KvrunError
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.looking import kept_use, open_listing
from kvrun.instance.parts import folder_lock, open_parts
from kvrun.instance.usage import (
    MAX_IDS,
    MAX_ROWS,
    KeptUse,
    SessionList,
    SessionUsage,
    TenantList,
    Usage,
    UsageAccess,
)
from kvrun.keys.listing import KeyListing, SessionListing
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


def tenants(config: KvrunConfig, asked: Mapping[str, str], kept: KeptIndexes) -> TenantList:
    """See ``KeptUse.tenants``. A stopped deployment whose index is ``kept`` is not opened, unless
    ids are to be told. Raises UnreachableError, and what the operation raises."""
    return _ask(config, "usage_tenants", asked, TenantList, lambda use: use.tenants(asked), kept)


def sessions(config: KvrunConfig, asked: Mapping[str, str], kept: KeptIndexes) -> SessionList:
    """See ``KeptUse.sessions``, and ``tenants``."""
    return _ask(config, "usage_sessions", asked, SessionList, lambda use: use.sessions(asked), kept)


def all_sessions(config: KvrunConfig, tenant: str, kept: KeptIndexes) -> SessionList:
    """Every session of a tenant, by its id, of as many as it may have. See ``tenants``.

    Others may begin and end meanwhile: each that is found is counted once.
    """
    reference, total = "", 0
    rows: dict[str, SessionUsage] = {}
    for offset in range(0, config.keys.max_sessions_per_tenant, MAX_ROWS):
        asked = {"tenant": tenant, "offset": str(offset), "limit": str(MAX_ROWS)}
        found = sessions(config, asked, kept)
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


def _refs_of(asked: Mapping[str, str]) -> Callable[[KeptUse], dict[str, str]]:
    return lambda use: use.refs(asked)


def _ask(
    config: KvrunConfig,
    operation: str,
    asked: Mapping[str, str],
    kind: type[_T],
    here: Callable[[KeptUse], _T],
    kept: KeptIndexes | None = None,
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
            if asked.get("reason"):
                # Ids are told, and each is a record in its log first.
                parts = opened.enter_context(
                    open_parts(config, memory_bytes=_MEMORY_BYTES, looking=True)
                )
                use = UsageAccess(parts.instance).kept
            else:
                listing = opened.enter_context(_listing(config, kept))
                use = opened.enter_context(kept_use(config, listing))
        except KvrunError as error:
            # It may be starting or stopping right now.
            why = f"{away}; and its keys cannot be opened: {error.message}"
            raise UnreachableError(why) from None
        return here(use)


@contextmanager
def _listing(config: KvrunConfig, kept: KeptIndexes | None) -> Iterator[SessionListing]:
    """Who has keys of a stopped deployment, from what is ``kept`` where that holds."""
    if kept is not None and (index := kept.find(config)) is not None:
        yield index
        return
    before = key_files(config)
    with open_listing(config) as listing:
        if kept is not None and isinstance(listing, KeyListing):
            kept.learn(config, before, listing.index)
        yield listing
