"""Erasure certificates: listed, downloaded, and as pages to read."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from kvrun.accounts.permissions import Permission, require
from kvrun.api import certificates
from kvrun.api.certificates import as_html, as_pdf, style_policy
from kvrun.api.dependencies import ActorNow, DeploymentId, ItemId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, PartialPage, cut, unread
from kvrun.deployments.storage_view import CertificateRow

router = APIRouter(tags=["certificates"])
_ONE = "/deployments/{deployment_id}/certificates/{certificate_id}"


class CertificateView(BaseModel):
    """What a certificate states. Times are RFC 3339."""

    id: str
    deployment_id: str
    kind: str
    reference: str
    requester: str
    issued_at: str
    complete_after: str
    claim_class: str = Field(
        description="Empty where nothing was held, and in one over several deployments."
    )
    children: int = Field(description="How many deployments' certificates it lists; usually 0.")
    keys: int
    unacknowledged: int


@router.get("/workspaces/{workspace_id}/certificates", summary="List certificates")
def list_certificates(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    deployment_id: Annotated[str, Query(max_length=128, description="Of this one only.")] = "",
    reference: Annotated[str, Query(max_length=200, description="With this one only.")] = "",
    limit: Limit = 50,
    cursor: Cursor = "",
) -> PartialPage[CertificateView]:
    """Of all deployments, deleted ones included; the newest first."""
    if deployment_id:
        found = services.find(actor, Permission.CERTIFICATES, deployment_id)
        services.same_workspace(found, workspace_id)
    else:
        require(actor, Permission.CERTIFICATES, workspace_id)
    listed = services.storage.certificates(workspace_id, deployment_id or None)
    wanted = [row for row in listed.rows if reference in ("", row.statement.request.reference)]
    items, after = cut(wanted, limit, cursor)
    shown = [_view(item) for item in items]
    return PartialPage(items=shown, next=after, problems=unread(listed.problems))


@router.get(
    _ONE,
    summary="Download a certificate",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The certificate."}},
)
def get_certificate(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, certificate_id: ItemId
) -> Response:
    """As it is verified: `kvrun verify certificate.json --trust anchor.json`."""
    data = certificates.read(services, actor, deployment_id, certificate_id)
    return _file(data, "application/json", f"{certificate_id}.json")


@router.get(
    _ONE + "/page",
    summary="Read a certificate",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "A page."}},
)
def get_certificate_page(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, certificate_id: ItemId
) -> Response:
    """As a page with the results of its checks. Only the certificate itself can be verified."""
    report = certificates.checked(services, actor, deployment_id, certificate_id)
    page = as_html(report, now=services.now())
    headers = {"Content-Security-Policy": style_policy(page)}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@router.get(
    _ONE + "/pdf",
    summary="Download a certificate as PDF",
    response_class=Response,
    responses={
        200: {"content": {"application/pdf": {}}, "description": "A PDF file."},
        501: {"description": "PDF files cannot be made here."},
    },
)
def get_certificate_pdf(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, certificate_id: ItemId
) -> Response:
    """Where the extra `pdf` is installed; else 501."""
    report = certificates.checked(services, actor, deployment_id, certificate_id)
    return _file(as_pdf(report, now=services.now()), "application/pdf", f"{certificate_id}.pdf")


@router.get(
    "/deployments/{deployment_id}/trust-anchor",
    summary="Download a deployment's trust anchor",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The anchor."}},
)
def get_trust_anchor(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> Response:
    """The public keys with which others check its certificates and log. Hand it over on another
    way than certificates."""
    data = certificates.anchor(services, actor, deployment_id)
    return _file(data, "application/json", f"{deployment_id}.anchor.json")


def _file(data: bytes, kind: str, name: str) -> Response:
    return Response(data, media_type=kind, headers=certificates.attachment(name))


def _view(row: CertificateRow) -> CertificateView:
    statement = row.statement
    return CertificateView(
        id=row.certificate_id,
        deployment_id=row.deployment_id,
        kind=statement.request.kind.value,
        reference=statement.request.reference,
        requester=statement.request.requester,
        issued_at=statement.issued_at,
        complete_after=statement.complete_after,
        claim_class=statement.claim_class.value if statement.claim_class else "",
        children=len(statement.children),
        keys=len(statement.keys),
        unacknowledged=len(statement.unacknowledged),
    )
