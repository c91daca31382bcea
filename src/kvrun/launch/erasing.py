"""Erasing from the command line: through the running daemon, or in its place where none runs."""

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from kvrun.config import KvrunConfig
from kvrun.erasure.certificate import ChildEntry
from kvrun.erasure.plan import Plan
from kvrun.erasure.targets import UnreachedEngines
from kvrun.errors import KvrunError
from kvrun.instance.admin import erasure_request, parent_request
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.erasures import ErasureResult, Erasures
from kvrun.instance.known_engines import KnownEngines
from kvrun.instance.parts import InstanceBusyError, folder_lock, open_erasures, open_parts
from kvrun.launch.admin import NotRunningError, ask_daemon
from kvrun.process import harden_process

_OFFLINE_MEMORY_BYTES = 1 << 20
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class ParentResult:
    """Where the certificate over several deployments is, and the opening of its subject."""

    id: str
    certificate: str
    opening: str


def plan_erasure(config: KvrunConfig, asked: Mapping[str, str], *, offline: bool) -> Plan:
    """What the erasure would reach; ``offline`` allows opening a stopped deployment's keys.

    With ``confirm`` it raises ConfirmationError where that token does not confirm the erasure now;
    with ``agreed`` as well the token may be as old as a second person's word.
    """

    def here(erasures: Erasures) -> Plan:
        request = erasure_request(asked)
        lifetime_s = request.token_lifetime_s
        return erasures.plan(request.scope, request.confirm, lifetime_s=lifetime_s)

    answer = _ask(config, "erase_plan", asked, here, offline, looking=True)
    return msgspec.json.decode(answer, type=Plan)


def erase(config: KvrunConfig, asked: Mapping[str, str], *, offline: bool) -> ErasureResult:
    """Erase and certify; see ``kvrun.instance.erasures.Erasures.erase``."""
    answer = _ask(config, "erase", asked, lambda e: e.erase(erasure_request(asked)), offline)
    return msgspec.json.decode(answer, type=ErasureResult)


def certify_parent(
    config: KvrunConfig, asked: Mapping[str, str], children: list[ChildEntry]
) -> ParentResult:
    """Certify what became of a request in several deployments, in the log of ``config``'s."""

    def here(erasures: Erasures) -> dict[str, str]:
        done = erasures.parent(parent_request(asked), children)
        return {"id": done[0], "certificate": str(done[1]), "opening": done[2].decode()}

    listed = msgspec.json.encode(children).decode()
    answer = _ask(config, "erase_parent", {**asked, "children": listed}, here, True)
    return msgspec.convert(msgspec.json.decode(answer), ParentResult)


def requester() -> str:
    """Who asks at this machine: the login name and its number."""
    try:
        return f"{pwd.getpwuid(os.getuid()).pw_name} (uid {os.getuid()})"
    except KeyError:
        return f"uid {os.getuid()}"


def _ask(
    config: KvrunConfig,
    operation: str,
    asked: Mapping[str, str],
    here: Callable[[Erasures], object],
    offline: bool,
    *,
    looking: bool = False,
) -> bytes:
    try:
        return ask_daemon(config, operation, asked, timeout_s=_TIMEOUT_S)
    except (NotRunningError, InstanceUnavailableError) as error:
        if not offline or not config.layout.keys.is_dir():
            raise
        away: KvrunError = error
    harden_process()
    try:
        with (
            folder_lock(config.layout.data_dir),
            open_parts(config, memory_bytes=_OFFLINE_MEMORY_BYTES, looking=looking) as parts,
            open_erasures(config, parts, None, _away(config)) as erasures,
        ):
            return msgspec.json.encode(here(erasures))
    except InstanceBusyError:
        raise away from None


def _away(config: KvrunConfig) -> UnreachedEngines:
    known = KnownEngines(config.layout.known_engines)
    owed = {owner for owed in known.owed() for owner in owed.owners}
    return UnreachedEngines([e.pid for e in known.running() if e.scrubs], sorted(owed))
