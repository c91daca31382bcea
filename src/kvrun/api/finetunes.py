"""Fine-tunes for somebody: those of this installation, in the workspace that it belongs to.

Routes and pages use these. A fine-tune lies in the control plane's own data folder, so it is shown
in the workspace of its configuration and in no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission, require
from kvrun.api.services import Services
from kvrun.audit.record import format_time
from kvrun.deployments.model import Deployment
from kvrun.finetune.errors import EvaluationError, FineTuneMissingError
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    Evaluation,
    FolderCheck,
    decode_evaluation,
)
from kvrun.finetune.gate import is_fine_tune, keys_of
from kvrun.finetune.store import FineTunes, JobView, Kept
from kvrun.launch.trust import own_keys

MAX_EVALUATION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FineTuneList:
    """What is on record, deleted fine-tunes included, and jobs that are not done."""

    kept: tuple[Kept, ...]
    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True)
class FineTuneDetail:
    """One fine-tune with its record; ``check`` read every byte of it just now."""

    kept: Kept
    folder: Path
    check: FolderCheck


@dataclass(frozen=True, slots=True)
class ServedEvaluation:
    """The evaluation of the model that a deployment is made with.

    ``fine_tune`` False: a model that is none. ``evaluation`` None: it is missing or malformed.
    Whether it holds is checked when the deployment starts.
    """

    fine_tune: bool
    evaluation: Evaluation | None


def listed(services: Services, actor: Actor, workspace_id: str) -> FineTuneList:
    """All of them, the last evaluated first. Raises NotFoundError or ForbiddenError."""
    require(actor, Permission.VIEW, workspace_id)
    if not _is_home(services, actor, workspace_id):
        return FineTuneList((), ())
    store = store_of(services)
    return FineTuneList(tuple(store.records()), tuple(store.jobs()))


def shown(services: Services, actor: Actor, workspace_id: str, name: str) -> FineTuneDetail:
    """One whose weights exist, checked. Raises FineTuneMissingError and as ``listed`` does."""
    store = store_of(services)
    for kept in listed(services, actor, workspace_id).kept:
        if kept.note.name == name and not kept.note.deleted_at:
            known = [key.public() for key in own_keys(services.config.layout)]
            known += keys_of(services.config.deployment.evaluation_keys)
            return FineTuneDetail(kept, store.folder(name), store.check(name, known))
    raise FineTuneMissingError(f"there is no fine-tune {name[:80]!r}")


def delete(services: Services, actor: Actor, workspace_id: str, name: str) -> None:
    """Delete its weights; the evaluation stays on record. Raises as ``shown`` does."""
    _require_home(services, actor, workspace_id, name)
    store_of(services).delete(name, format_time(services.now()))


def cancel(services: Services, actor: Actor, workspace_id: str, name: str) -> bool:
    """Ask its job to stop; False where no process works on it. Raises FineTuneMissingError."""
    _require_home(services, actor, workspace_id, name)
    return store_of(services).cancel(name)


def served(deployment: Deployment) -> ServedEvaluation:
    """What the model of a deployment says of itself. Reads two small files; checks nothing."""
    folder = Path(deployment.spec.model).expanduser()
    if not folder.is_absolute() or not folder.is_dir() or not is_fine_tune(folder):
        return ServedEvaluation(False, None)
    try:
        with (folder / EVALUATION_NAME).open("rb") as file:
            return ServedEvaluation(True, decode_evaluation(file.read(MAX_EVALUATION_BYTES)))
    except (OSError, EvaluationError):
        return ServedEvaluation(True, None)


def store_of(services: Services) -> FineTunes:
    """The installation's fine-tunes."""
    return FineTunes(services.config.layout.finetunes)


def _require_home(services: Services, actor: Actor, workspace_id: str, name: str) -> None:
    require(actor, Permission.DEPLOY, workspace_id)
    if not _is_home(services, actor, workspace_id):
        raise FineTuneMissingError(f"there is no fine-tune {name[:80]!r}")


def _is_home(services: Services, actor: Actor, workspace_id: str) -> bool:
    found = services.accounts.get_workspace(actor, workspace_id)
    return found.name == services.first_workspace
