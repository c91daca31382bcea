"""Fine-tunes and their evaluations: listed, checked, cancelled and deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response, status
from pydantic import BaseModel, ConfigDict, Field

from kvrun.accounts.permissions import Permission
from kvrun.api import finetunes
from kvrun.api.certificates import attachment
from kvrun.api.dependencies import ActorNow, DeploymentId, ServicesNow, WorkspaceId
from kvrun.finetune.errors import FineTuneMissingError
from kvrun.finetune.evaluation import STATEMENT_NAME, Evaluation
from kvrun.finetune.store import JobView, Kept

router = APIRouter(tags=["fine-tunes"])
_ONE = "/workspaces/{workspace_id}/finetunes/{name}"
_Name = Annotated[
    str, Path(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Its name.")
]


class ScoreView(BaseModel):
    """How a model answered the held-out examples."""

    model_config = ConfigDict(from_attributes=True)

    loss: float = Field(description="Nats a token of the expected answers.")
    exact_matches: int
    examples: int
    answer_tokens: int


class EvaluationView(BaseModel):
    """What `evaluation.json` says, in short."""

    id: str
    name: str
    base: str
    base_digest: str
    adapter_sha256: str
    origin: str = Field(description="`trained` or `imported`.")
    evaluated_at: str
    harness: str
    seed: int
    data_sha256: str
    split: str = Field(description="`given` or `held_out`.")
    overlap: int | None = Field(description="Examples that were trained on word for word.")
    device: str
    base_score: ScoreView
    tuned_score: ScoreView

    @classmethod
    def of(cls, found: Evaluation) -> EvaluationView:
        """As the API shows it."""
        return cls(
            id=found.id,
            name=found.name,
            base=found.base.model,
            base_digest=found.base.digest,
            adapter_sha256=found.adapter_sha256,
            origin=found.origin,
            evaluated_at=found.evaluated_at,
            harness=found.harness,
            seed=found.seed,
            data_sha256=found.evaluation.sha256,
            split=found.evaluation.split,
            overlap=found.evaluation.overlap,
            device=found.machine.device,
            base_score=ScoreView.model_validate(found.base_score),
            tuned_score=ScoreView.model_validate(found.tuned_score),
        )


class FineTuneView(BaseModel):
    """A fine-tune on record; `deleted_at` is empty while its weights exist."""

    name: str
    deleted_at: str
    evaluation: EvaluationView

    @classmethod
    def of(cls, kept: Kept) -> FineTuneView:
        """As the API shows it."""
        return cls(
            name=kept.note.name,
            deleted_at=kept.note.deleted_at,
            evaluation=EvaluationView.of(kept.evaluation),
        )


class FineTuneJobView(BaseModel):
    """A job that is not done; `running`: a process works on it now."""

    name: str
    state: str
    running: bool
    step: int
    steps: int
    loss: float | None
    said: str = Field(description="Why it failed.")

    @classmethod
    def of(cls, view: JobView) -> FineTuneJobView:
        """As the API shows it."""
        note = view.note
        return cls(
            name=note.name,
            state=note.state,
            running=view.running,
            step=note.step,
            steps=note.steps,
            loss=note.loss,
            said=note.said,
        )


class FineTunesView(BaseModel):
    """Fine-tunes on record and jobs that are not done."""

    items: list[FineTuneView]
    jobs: list[FineTuneJobView]


class CheckedFineTuneView(FineTuneView):
    """With the result of reading every byte of it."""

    model: str = Field(description="What a deployment's spec names to serve it.")
    holds: bool
    problem: str = Field(description="What does not hold; empty where all does.")


class ServedEvaluationView(BaseModel):
    """The evaluation of what a deployment serves; it is checked when the deployment starts."""

    fine_tune: bool
    evaluation: EvaluationView | None


class CancelledView(BaseModel):
    """Whether a process was there to be asked."""

    asked: bool


@router.get("/workspaces/{workspace_id}/finetunes", summary="List fine-tunes")
def list_finetunes(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId
) -> FineTunesView:
    """Those of this installation, deleted ones included, in the workspace it belongs to. Nothing is
    verified by this. `kvrun finetune create` makes one."""
    found = finetunes.listed(services, actor, workspace_id)
    return FineTunesView(
        items=[FineTuneView.of(item) for item in found.kept],
        jobs=[FineTuneJobView.of(item) for item in found.jobs],
    )


@router.get(_ONE, summary="Check a fine-tune")
def get_finetune(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, name: _Name
) -> CheckedFineTuneView:
    """Reads every byte of its weights: it takes seconds for gigabytes."""
    found = finetunes.shown(services, actor, workspace_id, name)
    return CheckedFineTuneView(
        **FineTuneView.of(found.kept).model_dump(),
        model=str(found.folder),
        holds=found.check.holds,
        problem=found.check.problem,
    )


@router.get(
    _ONE + "/statement",
    summary="Download a fine-tune's signed evaluation",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The statement."}},
)
def get_finetune_statement(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, name: _Name
) -> Response:
    """The in-toto statement whose subjects are the digests of all its files."""
    found = finetunes.listed(services, actor, workspace_id)
    kept = next((item for item in found.kept if item.note.name == name), None)
    if kept is None:
        raise FineTuneMissingError(f"there is no fine-tune {name!r}")
    headers = attachment(f"{name}.{STATEMENT_NAME}")
    return Response(kept.statement_bytes, media_type="application/json", headers=headers)


@router.post(_ONE + "/cancel", summary="Cancel a fine-tune's job")
def cancel_finetune(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, name: _Name
) -> CancelledView:
    """It stops after its current step; `kvrun finetune resume` goes on."""
    return CancelledView(asked=finetunes.cancel(services, actor, workspace_id, name))


@router.delete(_ONE, summary="Delete a fine-tune", status_code=status.HTTP_204_NO_CONTENT)
def delete_finetune(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, name: _Name
) -> None:
    """The weights, or an unfinished job. The evaluation stays on record."""
    finetunes.delete(services, actor, workspace_id, name)


@router.get(
    "/deployments/{deployment_id}/evaluation", summary="Show the evaluation of what is served"
)
def get_served_evaluation(
    services: ServicesNow, actor: ActorNow, deployment_id: DeploymentId
) -> ServedEvaluationView:
    """Of a fine-tune; `fine_tune` is false for any other model."""
    found = finetunes.served(services.find(actor, Permission.VIEW, deployment_id))
    evaluation = EvaluationView.of(found.evaluation) if found.evaluation is not None else None
    return ServedEvaluationView(fine_tune=found.fine_tune, evaluation=evaluation)
