"""Fine-tunes for somebody: those of this installation, in the workspace that it belongs to.

Routes and pages use these. A fine-tune lies in the control plane's own data folder, so it is shown
in the workspace of its configuration and in no other.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission, require
from kvrun.api.services import Services
from kvrun.audit.record import format_time
from kvrun.deployments.model import Deployment
from kvrun.durable import write_private_file
from kvrun.errors import KvrunError
from kvrun.finetune.dataset import parse_dataset
from kvrun.finetune.errors import (
    EvaluationError,
    FineTuneBusyError,
    FineTuneError,
    FineTuneMissingError,
    FineTuneTakenError,
)
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    Evaluation,
    FolderCheck,
    decode_evaluation,
)
from kvrun.finetune.finishing import Surroundings
from kvrun.finetune.gate import is_fine_tune, keys_of
from kvrun.finetune.harness import require_harness
from kvrun.finetune.job import MEMORY_SETTING, prepare
from kvrun.finetune.memory import check_need, half_of_the_machine, need_of, shape_of
from kvrun.finetune.process import start as run_job
from kvrun.finetune.store import FineTunes, JobNote, JobView, Kept
from kvrun.finetune.taskfolder import TaskFolder, check_file_names, read_tasks
from kvrun.finetune.tools import require_tools
from kvrun.finetune.training import Plan
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.launch.trust import own_keys

MAX_EVALUATION_BYTES = 1 << 20
_TRAIN, _EVAL, _TASKS = "train.jsonl", "eval.jsonl", "tasks"
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Asked:
    """A fine-tune that somebody wants. ``data`` and ``eval_data`` are JSON Lines.

    ``tasks`` names tasks of lm-eval in ``task_files``, contents by name.
    """

    name: str
    base: str
    data: str
    eval_data: str = ""
    plan: Plan = field(default_factory=Plan)
    tasks: tuple[str, ...] = ()
    task_files: Mapping[str, str] = field(default_factory=dict)


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
    if not is_home(services, actor, workspace_id):
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


def start(services: Services, actor: Actor, workspace_id: str, asked: Asked) -> JobNote:
    """Begin a fine-tune in a process of its own. What was given with it is kept until it is done.

    Raises FineTuneTakenError, FineTuneBusyError (one at a time), ToolsMissingError, and
    FineTuneError that names the lines or files which are wrong, or what takes too much memory.
    """
    _require_home(services, actor, workspace_id, asked.name)
    store, name = store_of(services), asked.name
    parse_dataset(_bytes(asked.data), "data")
    if asked.eval_data:
        parse_dataset(_bytes(asked.eval_data), "eval_data")
    _check_tasks(asked)
    _check_memory(services, asked)
    with _one_at_a_time:
        _check_free(store)
        require_tools()
        given = _give(store, asked)
        try:
            note = prepare(
                _around(services, store),
                name,
                asked.base,
                given / _TRAIN,
                given / _EVAL if asked.eval_data else None,
                asked.plan,
                _tasks_in(given, asked),
            )
        except Exception as error:
            shutil.rmtree(given, ignore_errors=True)
            if not isinstance(error, FineTuneTakenError | FineTuneBusyError):
                shutil.rmtree(store.job_folder(name), ignore_errors=True)
            raise
        _run(services, store, name)
    return note


def resume(services: Services, actor: Actor, workspace_id: str, name: str) -> JobNote:
    """Go on with a job that was stopped or cut short. Raises as ``start`` does."""
    _require_home(services, actor, workspace_id, name)
    store = store_of(services)
    with _one_at_a_time:
        _check_free(store)
        require_tools()
        note = store.job(name)
        _run(services, store, name)
    return note


def job_of(services: Services, actor: Actor, workspace_id: str, name: str) -> JobView | None:
    """How far a job is; None where it is done. Raises NotFoundError or ForbiddenError."""
    found = listed(services, actor, workspace_id).jobs
    return next((view for view in found if view.note.name == name), None)


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


def is_home(services: Services, actor: Actor, workspace_id: str) -> bool:
    """Whether the installation's fine-tunes are shown in this workspace."""
    found = services.accounts.get_workspace(actor, workspace_id)
    return found.name == services.first_workspace


def _around(services: Services, store: FineTunes) -> Surroundings:
    ring = SigningRing(services.config.layout.signing_keys, now=services.now)
    return Surroundings(
        store=store,
        signer=lambda: ring.load_or_create(KeyPurpose.EVIDENCE),
        now=services.now,
        random_bytes=os.urandom,
    )


def _check_free(store: FineTunes) -> None:
    running = [view.note.name for view in store.jobs() if view.running]
    if running:
        raise FineTuneBusyError(
            f"the fine-tune {running[0]!r} is being made; one is made at a time",
            hint="Wait until it is done, or cancel it.",
        )


def _run(services: Services, store: FineTunes, name: str) -> None:
    run_job(store, services.config.layout.signing_keys, name, _memory_bytes(services))


def _memory_bytes(services: Services) -> int:
    allowed = services.settings.finetune_memory_bytes
    return half_of_the_machine() if allowed is None else allowed


def _check_memory(services: Services, asked: Asked) -> None:
    """Refuse at once what the model and the plan alone show; the job itself sees the examples."""
    folder = Path(asked.base).expanduser()
    if not folder.is_dir():
        return  # made or found when the job runs
    need = need_of(shape_of(folder), asked.plan, (), len(asked.data) + len(asked.eval_data))
    check_need(need, asked.plan, _memory_bytes(services), MEMORY_SETTING)


def _check_tasks(asked: Asked) -> None:
    if bool(asked.tasks) != bool(asked.task_files):
        raise FineTuneError(
            "tasks are named, and no files were given with them"
            if asked.tasks
            else "files of tasks were given, and no task is named",
            hint="A task of lm-eval is a YAML file, with its examples as JSON Lines beside it.",
        )
    check_file_names(asked.task_files)
    if asked.tasks:
        require_harness()


def _tasks_in(given: Path, asked: Asked) -> TaskFolder | None:
    return read_tasks(given / _TASKS, asked.tasks) if asked.tasks else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _give(store: FineTunes, asked: Asked) -> Path:
    """The folder with what was handed over. Raises FineTuneTakenError, FineTuneError."""
    folder = store.given_folder(asked.name)
    if store.folder(asked.name).exists() or folder.exists():
        raise FineTuneTakenError(
            f"there is a fine-tune or a job {asked.name!r} already", hint="Choose another name."
        )
    try:
        for part in (store.root, folder.parent, folder, folder / _TASKS):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_file(folder / _TRAIN, _bytes(asked.data))
        write_private_file(folder / _EVAL, _bytes(asked.eval_data))
        for name, text in asked.task_files.items():
            write_private_file(folder / _TASKS / name, _bytes(text))
    except (KvrunError, OSError) as error:
        # Half of them would be kept by nobody, and stand in the way of the name.
        shutil.rmtree(folder, ignore_errors=True)
        said = error.message if isinstance(error, KvrunError) else error.strerror
        raise FineTuneError(f"the examples cannot be kept: {said}") from None
    return folder


def _require_home(services: Services, actor: Actor, workspace_id: str, name: str) -> None:
    require(actor, Permission.DEPLOY, workspace_id)
    if not is_home(services, actor, workspace_id):
        raise FineTuneMissingError(f"there is no fine-tune {name[:80]!r}")
