"""What is said of end users: class, region and labels, one by one or in bulk."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.deployments.registry import TenantNote
from kvrun.deployments.tenant_import import MAX_BYTES
from kvrun.deployments.tenant_import import import_tenants as take_in

router = APIRouter(tags=["tenants"])
MAX_AT_ONCE = 5000


class TenantNoteAsked(BaseModel):
    """What is said of one end user, who is named by the log's reference."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    tenant_ref: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]+$")
    tenant_class: str = Field(default="", max_length=64, description="Such as `gold`.")
    region: str = Field(default="", max_length=64, description="Such as `eu-central-1`.")
    labels: dict[str, str] = Field(default={}, max_length=32)


class TenantImport(BaseModel):
    """Notes on many end users: all of them are taken, or none."""

    model_config = ConfigDict(extra="forbid")

    tenants: list[TenantNoteAsked] = Field(min_length=1, max_length=MAX_AT_ONCE)


class TenantQuestion(BaseModel):
    """Whose notes are wanted."""

    model_config = ConfigDict(extra="forbid")

    tenant_refs: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        min_length=1, max_length=200
    )


class Imported(BaseModel):
    """How many were taken."""

    count: int


class TenantList(BaseModel):
    """Notes on many end users as CSV: all of them are taken, or none."""

    model_config = ConfigDict(extra="forbid")

    csv: str = Field(
        min_length=1,
        max_length=MAX_BYTES,
        description="The first line names the columns: `tenant` or `tenant_ref`, and any of "
        "`class`, `region` and `label:NAME`.",
    )


class ImportedList(BaseModel):
    """How many were taken, and the lines whose end user has no key here, so no pseudonym."""

    count: int
    unknown_lines: list[int]


@router.put("/deployments/{deployment_id}/tenants", summary="Label end users")
def put_tenants(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: TenantImport
) -> Imported:
    """Replaces what was said of the same ones before. Put no id into a text: none is looked for."""
    found = services.find(actor, Permission.SETTINGS, deployment_id)
    notes = [
        TenantNote(
            tenant_ref=item.tenant_ref,
            tenant_class=item.tenant_class,
            region=item.region,
            labels=item.labels,
        )
        for item in asked.tenants
    ]
    services.deployments.tenants.put(found.id, notes)
    return Imported(count=len(notes))


@router.post("/deployments/{deployment_id}/tenants/import", summary="Label end users from a list")
def import_tenants(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: TenantList
) -> ImportedList:
    """CSV by pseudonym or by id: ids are looked up in the deployment, and not kept."""
    found = services.find(actor, Permission.SETTINGS, deployment_id)
    report = take_in(services.deployments, found.id, asked.csv)
    return ImportedList(count=report.taken, unknown_lines=list(report.unknown))


@router.post("/deployments/{deployment_id}/tenants/search", summary="Show end users' labels")
def get_tenants(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: TenantQuestion
) -> list[TenantNoteAsked]:
    """What is said of those that are named; at most 200."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    notes = services.deployments.tenants.of(found.id, asked.tenant_refs)
    return [TenantNoteAsked.model_validate(note) for note in notes.values()]
