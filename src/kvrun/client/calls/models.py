"""Fine-tunes with their evaluations, and isolation self-tests."""

from collections.abc import Mapping, Sequence

from kvrun.client.call import LONG_S, Call, path
from kvrun.client.results.models import (
    Cancelled,
    CheckedFineTune,
    FineTuneJob,
    FineTunes,
    IsolationResult,
    IsolationResults,
    ServedEvaluation,
)


def list_finetunes(workspace_id: str) -> Call[FineTunes]:
    """The installation's fine-tunes, in the workspace it belongs to; nothing is verified."""
    return Call("GET", path("workspaces", workspace_id, "finetunes"), FineTunes)


def get_finetune(workspace_id: str, name: str) -> Call[CheckedFineTune]:
    """One fine-tune, every byte of it checked against its signed evaluation."""
    place = path("workspaces", workspace_id, "finetunes", name)
    return Call("GET", place, CheckedFineTune, timeout_s=LONG_S)


def get_finetune_statement(workspace_id: str, name: str) -> Call[bytes]:
    """The signed statement over a fine-tune's files and its evaluation."""
    return Call("GET", path("workspaces", workspace_id, "finetunes", name, "statement"), bytes)


def create_finetune(
    workspace_id: str,
    *,
    name: str,
    base: str,
    data: str,
    eval_data: str = "",
    epochs: int = 3,
    batch_size: int = 4,
    learning_rate: float = 2e-4,
    rank: int = 8,
    alpha: int = 16,
    max_tokens: int = 1024,
    seed: int = 0,
    tasks: Sequence[str] = (),
    task_files: Mapping[str, str] | None = None,
) -> Call[FineTuneJob]:
    """Begin a fine-tune; the list says how far it is.

    ``data`` and ``eval_data`` are examples as JSON Lines; without the latter one in ten is held
    out. ``tasks`` names tasks of lm-eval in ``task_files``: YAML and JSON Lines, contents by name.
    One fine-tune is made at a time.
    """
    body = {
        "name": name,
        "base": base,
        "data": data,
        "eval_data": eval_data,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "rank": rank,
        "alpha": alpha,
        "max_tokens": max_tokens,
        "seed": seed,
        "tasks": list(tasks),
        "task_files": dict(task_files or {}),
    }
    return Call("POST", path("workspaces", workspace_id, "finetunes"), FineTuneJob, body=body)


def resume_finetune(workspace_id: str, name: str) -> Call[FineTuneJob]:
    """Go on with a job that was cancelled, failed or was cut short."""
    place = path("workspaces", workspace_id, "finetunes", name, "resume")
    return Call("POST", place, FineTuneJob)


def cancel_finetune(workspace_id: str, name: str) -> Call[Cancelled]:
    """Ask its job to stop after the current step."""
    place = path("workspaces", workspace_id, "finetunes", name, "cancel")
    return Call("POST", place, Cancelled, repeatable=True)


def delete_finetune(workspace_id: str, name: str) -> Call[None]:
    """Delete its weights, or its unfinished job; the evaluation stays on record."""
    return Call("DELETE", path("workspaces", workspace_id, "finetunes", name), None)


def get_served_evaluation(deployment_id: str) -> Call[ServedEvaluation]:
    """The evaluation of the model that a deployment serves."""
    return Call("GET", path("deployments", deployment_id, "evaluation"), ServedEvaluation)


def list_isolation(deployment_id: str) -> Call[IsolationResults]:
    """A deployment's isolation self-tests."""
    return Call("GET", path("deployments", deployment_id, "isolation"), IsolationResults)


def run_isolation(
    deployment_id: str, *, rounds: int = 20, words: int = 300, restart: bool = False
) -> Call[IsolationResult]:
    """Test a running deployment with canary users; answers when it is done.

    ``rounds`` of times to first token, prompts of so many made-up ``words``; ``restart`` the
    deployment, to see what comes back.
    """
    body = {"rounds": rounds, "words": words, "restart": restart}
    place = path("deployments", deployment_id, "isolation")
    return Call("POST", place, IsolationResult, body=body, timeout_s=LONG_S)
