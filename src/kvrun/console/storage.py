"""Storage and certificates, of a workspace and of one deployment."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query, Response

from kvrun.accounts.permissions import Permission, require
from kvrun.api import certificates
from kvrun.api import storage as store
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.desk import Desk, DeskNow, base_of, page_router, place_of
from kvrun.console.frame import section_page
from kvrun.deployments.storage_view import CertificateRow, StoragePage
from kvrun.erasure.view import certificate_view

router = page_router()
_PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_Prefix = Annotated[str, Query(max_length=1000)]
_CertificateId = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
_ENTRIES = 200
_SHOWN = 200


@router.get("/workspaces/{workspace_id}/storage")
def get_storage(
    desk: DeskNow, workspace_id: WorkspaceId, prefix: _Prefix = "", cursor: _Prefix = ""
) -> Response:
    """The workspace's Storage, folder by folder."""
    listing = store.browse(desk.services, desk.actor, workspace_id, prefix, cursor, limit=_ENTRIES)
    here = f"{base_of(workspace_id)}/storage"
    return desk.page(
        "storage.html",
        desk.workspace(workspace_id),
        "storage",
        _listing(listing, here, workspace_id, top=""),
        names=_names(desk, workspace_id),
    )


@router.get(_PLACE + "/storage")
def get_deployment_storage(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    prefix: _Prefix = "",
    cursor: _Prefix = "",
) -> Response:
    """A deployment's own folder of Storage."""
    found = desk.deployment(Permission.VIEW, workspace_id, deployment_id)
    top = f"deployments/{found.id}"
    asked = prefix if f"{prefix}/".startswith(f"{top}/") else top
    listing = store.browse(desk.services, desk.actor, workspace_id, asked, cursor, limit=_ENTRIES)
    here = f"{place_of(found)}/storage"
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "storage",
        "deployment_storage.html",
        _listing(listing, here, workspace_id, top=top),
        names={},
    )


@router.get("/workspaces/{workspace_id}/certificates")
def get_certificates(desk: DeskNow, workspace_id: WorkspaceId) -> Response:
    """Every certificate of the workspace."""
    require(desk.actor, Permission.CERTIFICATES, workspace_id)
    listed = desk.services.storage.certificates(workspace_id)
    return desk.page(
        "certificates.html",
        desk.workspace(workspace_id),
        "certificates",
        certificates=listed.rows[:_SHOWN],
        total=len(listed.rows),
        problems=listed.problems,
        names=_names(desk, workspace_id),
        address_of=_address,
        download_of=_download,
        base_path=base_of(workspace_id),
    )


@router.get(_PLACE + "/certificates")
def get_deployment_certificates(
    desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """A deployment's certificates."""
    found = desk.deployment(Permission.CERTIFICATES, workspace_id, deployment_id)
    listed = desk.services.storage.certificates(workspace_id, found.id)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "certificates",
        "deployment_certificates.html",
        certificates=listed.rows[:_SHOWN],
        total=len(listed.rows),
        problems=listed.problems,
        names={found.id: found.spec.name},
        address_of=_address,
        download_of=_download,
        base_path=base_of(workspace_id),
    )


@router.get(_PLACE + "/certificates/{certificate_id}")
def get_certificate(
    desk: DeskNow,
    workspace_id: WorkspaceId,
    deployment_id: DeploymentId,
    certificate_id: _CertificateId,
) -> Response:
    """One certificate with the results of its checks."""
    found = desk.deployment(Permission.CERTIFICATES, workspace_id, deployment_id)
    report = certificates.checked(desk.services, desk.actor, found.id, certificate_id)
    assert report.statement is not None, "checked() refuses what cannot be read"
    view = certificate_view(report, report.statement, now=desk.services.now())
    address = _download_address(found.id, certificate_id)
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "certificates",
        "certificate.html",
        view=view,
        download=address,
    )


def _listing(listing: StoragePage, here: str, workspace_id: str, *, top: str) -> dict[str, object]:
    parts = [part for part in listing.prefix.split("/") if part]
    depth = len([part for part in top.split("/") if part])
    parents = [
        (part, "/".join(parts[: number + 1]))
        for number, part in enumerate(parts[:-1])
        if number + 1 >= depth
    ]
    return {
        "listing": listing,
        "here": here,
        "parents": ([("Storage", "")] if not top and parts else []) + parents,
        "object_address": f"/api/v1/workspaces/{quote(workspace_id, safe='')}/storage/object",
    }


def _names(desk: Desk, workspace_id: str) -> dict[str, str]:
    """Deployments' names by id."""
    return {item.id: item.spec.name for item in desk.services.listed(desk.actor, workspace_id)}


def _address(base: str, row: CertificateRow) -> str:
    place = f"{base}/deployments/{quote(row.deployment_id, safe='')}"
    return f"{place}/certificates/{quote(row.certificate_id, safe='')}"


def _download(row: CertificateRow) -> str:
    return _download_address(row.deployment_id, row.certificate_id)


def _download_address(deployment_id: str, certificate_id: str) -> str:
    """The API's own address of a certificate's bytes."""
    place = f"/api/v1/deployments/{quote(deployment_id, safe='')}"
    return f"{place}/certificates/{quote(certificate_id, safe='')}"
