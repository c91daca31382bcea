"""The end of a deployment, and deployments that somebody else runs."""

from pathlib import Path

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.errors import InvalidError
from kvrun.accounts.permissions import Permission, require
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow, WorkspaceId
from kvrun.api.routes.deployments import DeploymentView
from kvrun.api.services import requester

router = APIRouter(tags=["deployments"])


class DeletionAsked(BaseModel):
    """A deletion, confirmed."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=128, description="The deployment's name, to confirm.")


class DeletedView(BaseModel):
    """A deleted deployment."""

    deployment: DeploymentView
    certificates: list[str] = Field(description="None where there never was a key.")
    openings: dict[str, str] = Field(
        description="By certificate id; they are in this answer and nowhere else."
    )


class AttachTokenAsked(BaseModel):
    """A deployment that somebody else runs, before it registers."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=63)


class AttachToken(BaseModel):
    """The token for it."""

    token: str = Field(description="Works once, for an hour.")


class AttachAsked(BaseModel):
    """What to register."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1, max_length=200)
    config_file: str = Field(
        min_length=2, max_length=4096, description="Full path of its kvrun.toml on this machine."
    )


@router.post("/deployments/{deployment_id}/delete", summary="Delete a deployment")
def delete_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: DeletionAsked
) -> DeletedView:
    """Its keys are destroyed with a certificate, its cached ciphertext is removed; the log stays.

    It needs `erase_wide` besides `deploy`, and no second person: its name confirms it. Answers when
    it is done. What fails is tried again by the control plane.
    """
    found = services.find_to_delete(actor, deployment_id)
    if asked.name != found.spec.name:
        raise InvalidError(
            "the name is not the deployment's", hint="Send its name to confirm the deletion."
        )
    services.ask(actor, "delete", deployment_id)
    done = services.deployments.delete(found.id, requester(actor))
    return DeletedView(
        deployment=DeploymentView.of(done.deployment),
        certificates=list(done.certificates),
        openings=dict(done.openings),
    )


@router.post(
    "/workspaces/{workspace_id}/attach-tokens",
    summary="Make a token to attach a deployment",
    status_code=status.HTTP_201_CREATED,
)
def create_attach_token(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: AttachTokenAsked
) -> AttachToken:
    """With it somebody registers an engine and a daemon that they run themselves."""
    require(actor, Permission.DEPLOY, workspace_id)
    services.open_workspace(actor, workspace_id)
    return AttachToken(token=services.deployments.attach_token(workspace_id, asked.name))


@router.post(
    "/attached-deployments",
    summary="Attach a deployment",
    status_code=status.HTTP_201_CREATED,
)
def attach_deployment(services: ServicesNow, asked: AttachAsked) -> DeploymentView:
    """Registers what runs on this machine, in the workspace of the token, which is all it needs."""
    made = services.deployments.attach(asked.token, Path(asked.config_file))
    services.access_log.created(made, "an attach token")
    return DeploymentView.of(made)


@router.post("/deployments/{deployment_id}/detach", summary="Detach a deployment")
def detach_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """Forgets an attached deployment; its keys and data stay with whoever runs it."""
    found = services.ask(actor, "detach", deployment_id)
    return DeploymentView.of(services.deployments.detach(found.id))
