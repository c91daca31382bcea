"""Deployments: made, started, stopped, looked at and deleted."""

from typing import Annotated

from fastapi import APIRouter, Body, Query, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow, WorkspaceId
from kvrun.api.paging import Cursor, Limit, Page, cut
from kvrun.deployments.machine import Command, allowed
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    LauncherKind,
    Wanted,
)

router = APIRouter(tags=["deployments"])


class Spec(BaseModel):
    """What people choose of a deployment. Sizes in bytes."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    name: str = Field(min_length=1, max_length=63, description="Letters, digits, `.`, `_`, `-`.")
    model: str = Field(
        min_length=1, max_length=4096, description="A folder, a Hugging Face id, `demo` or `tiny`."
    )
    engine: str = Field(default="vllm", max_length=40, description="The serving engine.")
    multi_tenant: bool = Field(
        description="A product with customers in it: every request must name its end user. "
        "`false`: an internal tool."
    )
    stateless: bool = Field(default=False, description="Keep nothing after a request.")
    context_window: int | None = Field(
        default=None, ge=16, le=10_000_000, description="Tokens; unset: the model's own."
    )
    memory_bytes: int = Field(default=2**30, ge=2**20, le=2**60, description="The memory tier.")
    disk_bytes: int = Field(default=10 * 2**30, ge=0, le=2**60, description="The disk tier.")
    labels: dict[str, str] = Field(default={}, max_length=32, description="Labels of your own.")
    gpu_ids: list[int] = Field(
        default=[], max_length=64, description="GPUs as nvidia-smi numbers them; none: any."
    )
    allow_shared_gpu: bool = Field(
        default=False, description="Start although other processes use a GPU of it."
    )
    settings: dict[str, str | int | bool] = Field(
        default={}, max_length=32, description="Further settings of kvrun.toml by dotted key."
    )

    def spec(self) -> DeploymentSpec:
        """As the deployments' own type."""
        return DeploymentSpec(**{**self.model_dump(), "gpu_ids": tuple(self.gpu_ids)})


class ForeignProcessView(BaseModel):
    """A process on a GPU that is not the deployment's."""

    model_config = ConfigDict(from_attributes=True)

    pid: int
    name: str
    memory_bytes: int = Field(description="0: unknown.")


class GpuView(BaseModel):
    """A GPU as it was found at the latest start."""

    model_config = ConfigDict(from_attributes=True)

    index: int
    uuid: str
    name: str
    memory_bytes: int
    foreign: list[ForeignProcessView]


class DeploymentView(BaseModel):
    """A deployment. Times are seconds since 1970."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    workspace_id: str
    spec: Spec
    state: DeploymentState
    wanted: Wanted = Field(description="What its people last asked for.")
    reason: str = Field(description="Why it is in this state, where that is not plain.")
    launcher: LauncherKind
    endpoint: str = Field(description="Where it answers (OpenAI-compatible).")
    instance: int = Field(description="Counts rebuilds, from 1.")
    restarts: int = Field(description="Crashes since it was last started by a person.")
    created_at: float
    state_since: float
    started_at: float | None
    restart_at: float | None
    deleted_at: float | None
    gpu_notes: list[GpuView]
    shares_gpu: bool = Field(description="Others were on one of its GPUs when it started.")
    certificates: list[str] = Field(description="Certificates of its deletion.")
    commands: list[Command] = Field(description="What may be asked of it now.")

    @classmethod
    def of(cls, deployment: Deployment) -> "DeploymentView":
        """As the API shows it."""
        names = cls.model_fields.keys() - {"commands"}
        fields = {name: getattr(deployment, name) for name in names}
        return cls.model_validate(
            {**fields, "commands": _commands(deployment)}, from_attributes=True
        )


class MadeDeploymentView(DeploymentView):
    """A deployment that was just made."""

    warnings: list[str] = Field(
        description="What its people should know before they start it: such as that its key root "
        "cannot prove that keys are gone. The overview says it too."
    )


@router.get("/workspaces/{workspace_id}/deployments", summary="List a workspace's deployments")
def list_deployments(
    services: ServicesNow,
    actor: ActorNow,
    workspace_id: WorkspaceId,
    deleted: Annotated[bool, Query(description="Deleted ones too.")] = False,
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Page[DeploymentView]:
    """Those that the caller may see, by name."""
    found = services.listed(actor, workspace_id, deleted=deleted)
    items, after = cut(found, limit, cursor)
    return Page(items=[DeploymentView.of(item) for item in items], next=after)


@router.post(
    "/workspaces/{workspace_id}/deployments",
    summary="Make a deployment",
    status_code=status.HTTP_201_CREATED,
)
def create_deployment(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: Spec
) -> MadeDeploymentView:
    """It is not started by this."""
    made = services.create_deployment(actor, workspace_id, asked.spec())
    shown = DeploymentView.of(made)
    fields = {name: getattr(shown, name) for name in type(shown).model_fields}
    return MadeDeploymentView(**fields, warnings=list(services.views.warnings(made)))


@router.get("/deployments/{deployment_id}", summary="Show a deployment")
def get_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """Its state, what was asked of it last, and what may be asked now."""
    return DeploymentView.of(services.find(actor, Permission.VIEW, deployment_id))


@router.post(
    "/deployments/{deployment_id}/start",
    summary="Start a deployment",
    status_code=status.HTTP_202_ACCEPTED,
)
def start_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """Returns at once; `state` says when it runs. 409 names the foreign processes on its GPUs."""
    found = services.ask(actor, "start", deployment_id)
    return DeploymentView.of(services.deployments.start(found.id))


@router.post(
    "/deployments/{deployment_id}/stop",
    summary="Stop a deployment",
    status_code=status.HTTP_202_ACCEPTED,
)
def stop_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """Running requests end; what is on disk stays."""
    found = services.ask(actor, "stop", deployment_id)
    return DeploymentView.of(services.deployments.stop(found.id))


@router.post(
    "/deployments/{deployment_id}/restart",
    summary="Restart a deployment",
    status_code=status.HTTP_202_ACCEPTED,
)
def restart_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """Stop it and start it again."""
    found = services.ask(actor, "restart", deployment_id)
    return DeploymentView.of(services.deployments.restart(found.id))


@router.post(
    "/deployments/{deployment_id}/rebuild",
    summary="Rebuild a deployment",
    status_code=status.HTTP_202_ACCEPTED,
)
def rebuild_deployment(
    services: ServicesNow,
    actor: ActorNow,
    deployment_id: DeploymentId,
    asked: Annotated[Spec | None, Body()] = None,
) -> DeploymentView:
    """A new instance of the same deployment, warm from what is stored; with a new spec if given."""
    spec = asked.spec() if asked is not None else None
    return DeploymentView.of(services.rebuild_deployment(actor, deployment_id, spec))


@router.post(
    "/deployments/{deployment_id}/drain",
    summary="Drain a deployment",
    status_code=status.HTTP_202_ACCEPTED,
)
def drain_deployment(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> DeploymentView:
    """No new requests; it stops when the last one is done."""
    found = services.ask(actor, "drain", deployment_id)
    return DeploymentView.of(services.deployments.drain(found.id))


def _commands(deployment: Deployment) -> list[Command]:
    """What may be asked of it: of one that others run only its deletion, once it stopped."""
    if deployment.launcher is LauncherKind.LOCAL:
        return sorted(allowed(deployment.state))
    return [Command.DELETE] if deployment.state is DeploymentState.STOPPED else []
