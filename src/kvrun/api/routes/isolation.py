"""Isolation self-tests of a deployment: run, and their signed results."""

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.api import isolation
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow
from kvrun.isolation.report import Outcome
from kvrun.isolation.run import Options
from kvrun.isolation.service import StoredResult

router = APIRouter(tags=["isolation"])
_PATH = "/deployments/{deployment_id}/isolation"
_DEFAULT = Options()


class IsolationCheckView(BaseModel):
    """One thing that was tried."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    outcome: Outcome
    detail: str


class IsolationView(BaseModel):
    """A self-test's result. Times are RFC 3339."""

    issued_at: str
    outcome: Outcome
    engine: str
    restarted: bool
    checks: list[IsolationCheckView]
    signer: str = Field(description="`trusted`: signed with a key of this installation.")
    object: str = Field(description="The signed file in the deployment's Storage.")

    @classmethod
    def of(cls, stored: StoredResult) -> "IsolationView":
        """As the API shows it."""
        result = stored.result
        return cls(
            issued_at=result.issued_at,
            outcome=result.outcome,
            engine=result.engine,
            restarted=result.restarted,
            checks=[IsolationCheckView.model_validate(item) for item in result.checks],
            signer=stored.signer.value,
            object="isolation/" + stored.name.rpartition("/")[2],
        )


class IsolationListView(BaseModel):
    """Results, the last one first."""

    items: list[IsolationView]


class IsolationOptions(BaseModel):
    """How to test."""

    model_config = ConfigDict(extra="forbid")

    rounds: int = Field(
        default=_DEFAULT.rounds, ge=8, le=200, description="Of times to first token."
    )
    words: int = Field(default=_DEFAULT.words, ge=20, le=100_000, description="Prompts' length.")
    restart: bool = Field(
        default=False, description="Restart the deployment, to test what comes back."
    )


@router.get(_PATH, summary="List isolation self-tests")
def list_isolation(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> IsolationListView:
    """The signed results in the deployment's Storage."""
    found = isolation.results(services, actor, deployment_id)
    return IsolationListView(items=[IsolationView.of(item) for item in found])


@router.post(_PATH, summary="Run an isolation self-test", status_code=status.HTTP_201_CREATED)
def run_isolation(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId, asked: IsolationOptions
) -> IsolationView:
    """Canary users try to reach each other's cache; answers when it is done, in a minute or so."""
    options = Options(rounds=asked.rounds, words=asked.words, restart=asked.restart)
    return IsolationView.of(isolation.run(services, actor, deployment_id, options))
