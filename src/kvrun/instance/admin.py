"""What the command line may ask of a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrun.audit.settings import LogHealth
from kvrun.cache.store import CacheStats
from kvrun.erasure.certificate import ChildEntry, RequestKind
from kvrun.erasure.commitment import SALT_BYTES
from kvrun.erasure.job import ID_BYTES
from kvrun.erasure.plan import ErasureScope, Plan, erasure_scope, parent_scope
from kvrun.errors import KvrunError
from kvrun.instance.erasures import ErasedSession, ErasureRequest, ErasureResult, Erasures
from kvrun.instance.instance import Instance


class UnknownOperationError(KvrunError):
    """The daemon does not know the operation, or an argument is missing."""

    status = 400


class NotFoundError(KvrunError):
    """Nothing is known under that name."""

    status = 404


class InstanceStatus(msgspec.Struct, frozen=True):
    """The daemon's state for people and scripts."""

    workspace: str
    deployment: str
    stateless: bool
    engine: str
    requests: int
    sessions: int
    audit_available: bool
    audit_records: int
    audit: LogHealth
    cache: CacheStats
    protections: dict[str, str]


class AdminService:
    """Operations by name; each takes and returns plain values."""

    def __init__(
        self,
        instance: Instance,
        erasures: Erasures,
        *,
        audit: Callable[[], LogHealth],
        protections: Mapping[str, str],
        key_copy_refused: Callable[[], str] = lambda: "",
    ) -> None:
        self._instance = instance
        self._erasures = erasures
        self._audit = audit
        self.protections = dict(protections)
        self._key_copy_refused = key_copy_refused
        self._operations: dict[str, Callable[[Mapping[str, str]], object]] = {
            "status": self._status,
            "erase_session": self._erase_session,
            "erase_tenant": self._erase_tenant,
            "erase_plan": self._erase_plan,
            "erase": self._erase,
            "erase_parent": self._erase_parent,
            "request": self._request,
            "flush": self._flush,
        }

    def add(self, operations: Mapping[str, Callable[[Mapping[str, str]], object]]) -> None:
        """Offer further operations."""
        self._operations.update(operations)

    def call(self, operation: str, arguments: Mapping[str, str]) -> bytes:
        """Carry out one operation; its result as JSON.

        Raises:
            KvrunError: no such operation, a missing argument, or the operation failed.
        """
        run = self._operations.get(operation)
        if run is None:
            raise UnknownOperationError(
                f"the daemon knows no operation {operation!r}",
                hint=f"known are {', '.join(sorted(self._operations))}",
            )
        return msgspec.json.encode(run(arguments))

    def _status(self, _: Mapping[str, str]) -> InstanceStatus:
        instance, audit = self._instance, self._audit()
        layout = instance.layout
        return InstanceStatus(
            workspace=instance.workspace,
            deployment=instance.deployment,
            stateless=instance.stateless,
            engine=layout.software if layout is not None else "",
            requests=len(instance.handles),
            sessions=instance.keys.session_count,
            audit_available=audit.available,
            audit_records=audit.records,
            audit=audit,
            cache=instance.cache.stats(),
            protections=self.protections | self._protections_now(),
        )

    def _protections_now(self) -> dict[str, str]:
        keys = self._instance.keys
        told = {"key_copy": self._key_copy_refused(), "key_folder": keys.recovery_text}
        return {"lease": keys.lease_text} | {name: text for name, text in told.items() if text}

    def _erase_session(self, arguments: Mapping[str, str]) -> list[ErasedSession]:
        return self._erase_at_once(
            ErasureScope(
                RequestKind.SESSION, _argument(arguments, "tenant"), _argument(arguments, "session")
            )
        )

    def _erase_tenant(self, arguments: Mapping[str, str]) -> list[ErasedSession]:
        return self._erase_at_once(ErasureScope(RequestKind.TENANT, _argument(arguments, "tenant")))

    def _erase_at_once(self, scope: ErasureScope) -> list[ErasedSession]:
        request = ErasureRequest(scope, "an operator of this machine", confirmed=True)
        return self._erasures.erase(request).erased

    def _erase_plan(self, arguments: Mapping[str, str]) -> Plan:
        asked = erasure_request(arguments)
        return self._erasures.plan(asked.scope, asked.confirm, lifetime_s=asked.token_lifetime_s)

    def _erase(self, arguments: Mapping[str, str]) -> ErasureResult:
        return self._erasures.erase(erasure_request(arguments))

    def _erase_parent(self, arguments: Mapping[str, str]) -> dict[str, str]:
        try:
            children = msgspec.json.decode(_argument(arguments, "children"), type=list[ChildEntry])
        except msgspec.MsgspecError as error:
            raise UnknownOperationError(f"the argument 'children' is malformed: {error}") from None
        found = self._erasures.parent(parent_request(arguments), children)
        return {"id": found[0], "certificate": str(found[1]), "opening": found[2].decode()}

    def _request(self, arguments: Mapping[str, str]) -> object:
        request_id = _argument(arguments, "request_id")
        reuse = self._instance.handles.reuse(request_id)
        if reuse is None:
            raise NotFoundError(
                f"no request {request_id!r} is remembered",
                hint="the id stands in the response header X-KV-Request-Id",
            )
        return reuse

    def _flush(self, _: Mapping[str, str]) -> dict[str, int]:
        self._instance.cache.flush()
        self._instance.journal.commit()
        return {"audit_records": self._audit().records}


def erasure_request(arguments: Mapping[str, str]) -> ErasureRequest:
    """The request in an operation's arguments.

    Raises ScopeNotServedError, or UnknownOperationError for an argument that is malformed.
    """
    return _request(arguments, _scope(arguments))


def parent_request(arguments: Mapping[str, str]) -> ErasureRequest:
    """The request for a certificate over several deployments. Raises as ``erasure_request``."""
    kind = _argument(arguments, "kind")
    scope = parent_scope(kind, arguments.get("tenant", ""), arguments.get("name", ""))
    return _request(arguments, scope)


def _request(arguments: Mapping[str, str], scope: ErasureScope) -> ErasureRequest:
    return ErasureRequest(
        scope,
        arguments.get("requester", ""),
        arguments.get("reference", ""),
        arguments.get("legal_basis", ""),
        arguments.get("confirm", ""),
        arguments.get("confirmed", "") == "yes",
        _hex(arguments, "id", ID_BYTES).hex(),
        _hex(arguments, "salt", SALT_BYTES),
        _seconds(arguments, "requested_at"),
        arguments.get("agreed", "") == "yes",
    )


def _scope(arguments: Mapping[str, str]) -> ErasureScope:
    refs = arguments.get("refs", "")
    return erasure_scope(
        _argument(arguments, "kind"),
        arguments.get("tenant", ""),
        arguments.get("session", ""),
        refs=refs.split(",") if refs else (),
        name=arguments.get("name", ""),
    )


def _argument(arguments: Mapping[str, str], name: str) -> str:
    value = arguments.get(name)
    if not value:
        raise UnknownOperationError(f"the operation needs an argument {name!r}")
    return value


def _hex(arguments: Mapping[str, str], name: str, size_bytes: int) -> bytes:
    """So many bytes in lower-case hexadecimal; none where the argument is missing."""
    value = arguments.get(name, "")
    if value and (len(value) != 2 * size_bytes or not set(value) <= set("0123456789abcdef")):
        raise UnknownOperationError(f"the argument {name!r} is not {size_bytes} bytes in hex")
    return bytes.fromhex(value)


def _seconds(arguments: Mapping[str, str], name: str) -> float:
    """Seconds since 1970; 0 where the argument is missing."""
    try:
        seconds = float(arguments.get(name) or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UnknownOperationError(f"the argument {name!r} is no time")
    return seconds
