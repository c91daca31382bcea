"""What the command line may ask of a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrun.cache.store import CacheStats
from kvrun.errors import KvrunError
from kvrun.instance.instance import ErasedSession, Instance


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
    cache: CacheStats
    protections: dict[str, str]


class AdminService:
    """Operations by name; each takes and returns plain values."""

    def __init__(
        self, instance: Instance, *, audit_size: Callable[[], int], protections: Mapping[str, str]
    ) -> None:
        self._instance = instance
        self._audit_size = audit_size
        self.protections = dict(protections)
        self.on_erased: Callable[[str, str | None], None] = lambda *_: None
        self._operations: dict[str, Callable[[Mapping[str, str]], object]] = {
            "status": self._status,
            "erase_session": self._erase_session,
            "erase_tenant": self._erase_tenant,
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
        instance = self._instance
        layout = instance.layout
        return InstanceStatus(
            workspace=instance.workspace,
            deployment=instance.deployment,
            stateless=instance.stateless,
            engine=layout.software if layout is not None else "",
            requests=len(instance.handles),
            sessions=sum(1 for _ in instance.keys.sessions()),
            audit_available=instance.journal.available,
            audit_records=self._audit_size(),
            cache=instance.cache.stats(),
            protections=self.protections,
        )

    def _erase_session(self, arguments: Mapping[str, str]) -> list[ErasedSession]:
        return self._erase(_argument(arguments, "tenant"), _argument(arguments, "session"))

    def _erase_tenant(self, arguments: Mapping[str, str]) -> list[ErasedSession]:
        return self._erase(_argument(arguments, "tenant"), None)

    def _erase(self, tenant: str, session: str | None) -> list[ErasedSession]:
        erased = self._instance.erase(tenant, session)
        self.on_erased(tenant, session)
        return erased

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
        return {"audit_records": self._audit_size()}


def _argument(arguments: Mapping[str, str], name: str) -> str:
    value = arguments.get(name)
    if not value:
        raise UnknownOperationError(f"the operation needs an argument {name!r}")
    return value
