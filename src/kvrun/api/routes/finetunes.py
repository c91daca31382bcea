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
from kvrun.finetune.training import Plan

router = APIRouter(tags=["fine-tunes"])
_ALL = "/workspaces/{workspace_id}/finetunes"
_ONE = _ALL + "/{name}"
_PLAN = Plan()
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


class TaskScoreView(BaseModel):
    """One metric of a task of lm-eval."""

    model_config = ConfigDict(from_attributes=True)

    task: str
    metric: str
    examples: int
    base: float
    tuned: float


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
    task_scores: list[TaskScoreView] = Field(description="Of the tasks that were named, if any.")

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
            task_scores=[
                TaskScoreView.model_validate(item)
                for item in (found.tasks.scores if found.tasks is not None else ())
            ],
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
    what: str = Field(description="What is done now: training, evaluating.")
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
            what=note.what,
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


class FineTuneOrder(BaseModel):
    """What to train. The examples are kept until the job is done, and no longer."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    base: str = Field(
        min_length=1,
        max_length=1000,
        description='A folder, a Hugging Face id that is on the machine, or "demo".',
    )
    data: str = Field(
        min_length=1,
        description="Examples as JSON Lines; `control.max_body_bytes` bounds the whole request.",
    )
    eval_data: str = Field(default="", description="Examples to evaluate with; else one in ten.")
    epochs: int = Field(default=_PLAN.epochs, ge=1, le=1000)
    batch_size: int = Field(default=_PLAN.batch_size, ge=1, le=1024)
    learning_rate: float = Field(default=_PLAN.learning_rate, gt=0, le=1)
    rank: int = Field(default=_PLAN.rank, ge=1, le=1024)
    alpha: int = Field(default=_PLAN.alpha, ge=1, le=4096)
    max_tokens: int = Field(default=_PLAN.max_tokens, ge=1, le=1_000_000)
    seed: int = Field(default=_PLAN.seed, ge=0, lt=2**31)
    tasks: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[], max_length=50, description="Tasks of lm-eval to measure both models in."
    )
    task_files: dict[str, str] = Field(
        default={},
        description="Their YAML files and examples (JSON Lines), contents by name.",
    )

    @property
    def asked(self) -> finetunes.Asked:
        """As it is begun."""
        plan = self.model_dump(include=set(Plan.__struct_fields__))
        return finetunes.Asked(
            name=self.name,
            base=self.base,
            data=self.data,
            eval_data=self.eval_data,
            plan=Plan(**plan),
            tasks=tuple(self.tasks),
            task_files=self.task_files,
        )


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


@router.post(_ALL, summary="Make a fine-tune", status_code=status.HTTP_202_ACCEPTED)
def create_finetune(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, asked: FineTuneOrder
) -> FineTuneJobView:
    """Trains a LoRA adapter in a process of its own, merges it, evaluates base and result, and
    signs. One is made at a time, with `control.finetune_memory_bytes` of memory at most. Ask for
    the list to see how far it is."""
    note = finetunes.start(services, actor, workspace_id, asked.asked)
    return FineTuneJobView.of(JobView(note, True))


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
    """It stops after its current step; resuming it goes on from its last checkpoint."""
    return CancelledView(asked=finetunes.cancel(services, actor, workspace_id, name))


@router.post(
    _ONE + "/resume",
    summary="Go on with a fine-tune's job",
    status_code=status.HTTP_202_ACCEPTED,
)
def resume_finetune(
    services: ServicesNow, actor: ActorNow, workspace_id: WorkspaceId, name: _Name
) -> FineTuneJobView:
    """One that was cancelled, failed or was cut short, from its last checkpoint."""
    note = finetunes.resume(services, actor, workspace_id, name)
    return FineTuneJobView.of(JobView(note, True))


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
