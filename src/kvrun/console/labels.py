"""What operators say of end users: class, region and labels, of one or of a list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from kvrun.accounts.errors import ConflictError
from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import DeploymentId, WorkspaceId
from kvrun.console.desk import ChangeNow, Desk, DeskNow, go, page_router, place_of
from kvrun.console.forms import Form
from kvrun.console.frame import section_page
from kvrun.console.users import user_page
from kvrun.deployments.model import Deployment
from kvrun.deployments.registry import TenantNote
from kvrun.deployments.tenant_import import MAX_BYTES, ImportReport, import_tenants
from kvrun.errors import KvrunError

router = page_router()
_PLACE = "/workspaces/{workspace_id}/deployments/{deployment_id}"
_Ref = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9]+$")]


@router.post(_PLACE + "/users/{tenant_ref}/labels")
def post_labels(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId, tenant_ref: _Ref
) -> Response:
    """Say it of one user, by reference; what was said before is replaced."""
    desk, form = change.desk, change.form
    found = _open(desk, workspace_id, deployment_id)
    note = TenantNote(
        tenant_ref=tenant_ref,
        tenant_class=form.text("tenant_class", "The class", limit=64),
        region=form.text("region", "The region", limit=64),
        labels=form.pairs("labels", "Labels"),
    )
    if not form.errors:
        try:
            desk.services.deployments.tenants.put(found.id, [note])
            return go(f"{place_of(found)}/users/{tenant_ref}", "labelled")
        except KvrunError as error:
            form.errors["labels"] = error.diagnostics()
    return user_page(desk, workspace_id, found.id, tenant_ref, form)


@router.get(_PLACE + "/labels")
def get_list(desk: DeskNow, workspace_id: WorkspaceId, deployment_id: DeploymentId) -> Response:
    """The form for a list."""
    found = desk.deployment(Permission.SETTINGS, workspace_id, deployment_id)
    return _list(desk, workspace_id, found, Form({}, {}), None)


@router.post(_PLACE + "/labels")
def post_list(
    change: ChangeNow, workspace_id: WorkspaceId, deployment_id: DeploymentId
) -> Response:
    """Take a list in: all of it or, where a line is wrong, nothing."""
    desk, form = change.desk, change.form
    found = _open(desk, workspace_id, deployment_id)
    report = None
    text = form.values.get("csv", "")[: MAX_BYTES + 1]
    if not text.strip():
        form.errors["csv"] = "A list is needed."
    else:
        try:
            report = import_tenants(desk.services.deployments, found.id, text)
        except KvrunError as error:
            form.errors["csv"] = error.diagnostics()
    return _list(desk, workspace_id, found, form, report)


def _open(desk: Desk, workspace_id: str, deployment_id: str) -> Deployment:
    found = desk.deployment(Permission.SETTINGS, workspace_id, deployment_id)
    if found.read_only:
        raise ConflictError("the deployment is deleted: it is read only")
    return found


def _list(
    desk: Desk, workspace_id: str, found: Deployment, form: Form, report: ImportReport | None
) -> Response:
    return section_page(
        desk,
        desk.workspace(workspace_id),
        found,
        "users",
        "labels.html",
        values={} if report is not None else form.values,
        errors=form.errors,
        report=report,
        status=422 if form.errors else 200,
    )
