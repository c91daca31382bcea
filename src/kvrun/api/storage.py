"""Storage for somebody: which part of it needs which permission. Routes and pages use these."""

from __future__ import annotations

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission, require
from kvrun.api.reading import note_read
from kvrun.api.services import Services
from kvrun.deployments.storage_view import StoragePage
from kvrun.storage import ObjectMissingError

_NEEDS = {"audit": Permission.AUDIT_READ, "certificates": Permission.CERTIFICATES}


def browse(
    services: Services, actor: Actor, workspace_id: str, prefix: str, cursor: str, *, limit: int
) -> StoragePage:
    """The entries directly below a folder. Raises NotFoundError, ForbiddenError, StorageError."""
    parts = _parts(prefix)
    if len(parts) > 1:
        _check(services, actor, workspace_id, parts, Permission.VIEW)
    else:
        require(actor, Permission.VIEW, workspace_id)
    return services.storage.browse(workspace_id, "/".join(parts), cursor, limit=limit)


def read(services: Services, actor: Actor, workspace_id: str, key: str) -> bytes:
    """An object. Reading a log's file is on record first.

    Raises NotFoundError, ForbiddenError, ObjectMissingError, StorageError or AuditError.
    """
    parts = _parts(key)
    if len(parts) < 4:
        require(actor, Permission.VIEW, workspace_id)
        raise ObjectMissingError("there is no such object in Storage")
    # Not in the table: ciphertext, which says nothing without a key.
    needed = _NEEDS.get(parts[2], Permission.VIEW)
    _check(services, actor, workspace_id, parts, needed)
    if needed is Permission.AUDIT_READ:
        found = services.find(actor, needed, parts[1])
        note_read(services.deployments, actor, found, "an object in Storage")
    # As it was judged, not as it was written.
    return services.storage.read(workspace_id, "/".join(parts))


def _check(
    services: Services, actor: Actor, workspace_id: str, parts: list[str], needed: Permission
) -> None:
    found = services.find(actor, needed, parts[1])
    services.same_workspace(found, workspace_id)


def _parts(key: str) -> list[str]:
    """``deployments/ID/kind/...``; anything else is nothing that anybody stored."""
    parts = [part for part in key.split("/") if part]
    if (parts and parts[0] != "deployments") or any(set(part) <= {"."} for part in parts):
        raise ObjectMissingError("there is no such folder or object in Storage")
    return parts
