"""Fine-tunes with their evaluations, and isolation self-tests. Times are RFC 3339."""

import msgspec


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How a model answered held-out examples; ``loss`` in nats a token."""

    loss: float
    exact_matches: int
    examples: int
    answer_tokens: int


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a task of lm-eval, for the base and for the fine-tune."""

    task: str
    metric: str
    examples: int
    base: float
    tuned: float


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tune's evaluation in short. ``overlap``: examples trained on word for word."""

    id: str
    name: str
    base: str
    base_digest: str
    adapter_sha256: str
    origin: str
    evaluated_at: str
    harness: str
    seed: int
    data_sha256: str
    split: str
    overlap: int | None
    device: str
    base_score: Score
    tuned_score: Score
    task_scores: list[TaskScore] = []


class FineTune(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tune on record; ``deleted_at`` is empty while its weights exist."""

    name: str
    deleted_at: str
    evaluation: Evaluation


class FineTuneJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not done; ``what`` is done now, ``said``: why it failed."""

    name: str
    state: str
    running: bool
    step: int
    steps: int
    loss: float | None
    what: str
    said: str


class FineTunes(msgspec.Struct, frozen=True, kw_only=True):
    """Fine-tunes on record, the last evaluated first, and jobs that are not done."""

    items: list[FineTune]
    jobs: list[FineTuneJob]


class CheckedFineTune(FineTune, frozen=True, kw_only=True):
    """A fine-tune of which every byte was read; ``model`` is what a deployment's spec names."""

    model: str
    holds: bool
    problem: str


class ServedEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of what a deployment serves; ``fine_tune`` False for any other model."""

    fine_tune: bool
    evaluation: Evaluation | None


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a process was there to be asked to stop."""

    asked: bool


class IsolationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a self-test tried: ``pass``, ``fail``, ``inconclusive`` or ``skipped``."""

    name: str
    outcome: str
    detail: str


class IsolationResult(msgspec.Struct, frozen=True, kw_only=True):
    """A self-test; ``object`` is the signed file in the deployment's folder of Storage."""

    issued_at: str
    outcome: str
    engine: str
    restarted: bool
    checks: list[IsolationCheck]
    signer: str
    object: str


class IsolationResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results, the last one first."""

    items: list[IsolationResult]
