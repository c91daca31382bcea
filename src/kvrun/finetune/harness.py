"""Tasks of lm-eval on base and fine-tune, from files of this machine and without network."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvrun.finetune.errors import FineTuneError, ToolsMissingError
from kvrun.finetune.taskfolder import TaskFolder

_DISTRIBUTION = "lm-eval"


class TaskScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric of a task. ``metric`` is lm-eval's word, with the filter where one was used."""

    task: str
    metric: str
    examples: int
    base: float
    tuned: float


class TaskResults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lm-eval found. ``sha256`` (hex) is the task folder's, over names and contents."""

    harness: str
    sha256: str
    scores: list[TaskScore]


Measured = Mapping[tuple[str, str], tuple[float, int]]
"""Value and number of examples by task and metric."""


def require_harness() -> str:
    """The harness's name and version. Raises ToolsMissingError where it is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ToolsMissingError(
            "tasks need lm-eval, which is not installed", hint='pip install "kvrun[lm-eval]"'
        )
    return f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)}"


def measure(tasks: TaskFolder, model: Any, tokenizer: Any, seed: int) -> Measured:
    """What a model scores in the tasks. Raises FineTuneError for a task that cannot be carried out.

    Nothing is fetched: the libraries are told to be offline, and tasks name files only.
    """
    require_harness()
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        os.environ[name] = "1"
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    keep_templates_in(importlib.import_module("lm_eval.utils"))
    evaluator = importlib.import_module("lm_eval.evaluator")
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    wrapper = importlib.import_module("lm_eval.models.huggingface").HFLM
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="kvrun-tasks-") as place:
        tasks.write(Path(place))
        try:
            found = evaluator.simple_evaluate(
                model=wrapper(pretrained=model, tokenizer=tokenizer, batch_size=1),
                tasks=list(tasks.names),
                task_manager=manager(include_path=place, include_defaults=False),
                bootstrap_iters=0,
                log_samples=False,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
            )
        except Exception as error:  # whatever a task's author wrote
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise FineTuneError(f"the tasks cannot be carried out: {said}") from None
    return _measured(tasks, found)


def keep_templates_in(utils: Any) -> None:
    """Have a task's templates carried out in Jinja's sandbox: lm-eval's own environment lets them
    reach any function of this process.

    ``utils`` is the module ``lm_eval.utils``. Raises ToolsMissingError where it is another one
    than is known here.
    """
    known = getattr(utils, "env", None)
    if not isinstance(known, Environment):
        raise ToolsMissingError(
            "this version of lm-eval carries out templates in a way that is not known here",
            hint='pip install "kvrun[lm-eval]"',
        )
    kept = ImmutableSandboxedEnvironment(
        undefined=known.undefined, keep_trailing_newline=known.keep_trailing_newline
    )
    kept.filters.update(known.filters)
    utils.env = kept


def compare(tasks: TaskFolder, base: Measured, tuned: Measured) -> TaskResults:
    """Both side by side."""
    return TaskResults(
        harness=require_harness(),
        sha256=tasks.sha256,
        scores=[
            TaskScore(
                task=task,
                metric=metric,
                examples=base[task, metric][1],
                base=base[task, metric][0],
                tuned=tuned[task, metric][0],
            )
            for task, metric in sorted(set(base) & set(tuned))
        ],
    )


def _measured(tasks: TaskFolder, found: Any) -> Measured:
    measured: dict[tuple[str, str], tuple[float, int]] = {}
    for task in tasks.names:
        results = found["results"][task]
        examples = int(found["n-samples"][task]["effective"])
        for name, value in results.items():
            metric, _, used = name.partition(",")
            if metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            shown = metric if used in ("", "none") else f"{metric} ({used})"
            measured[task, shown] = (float(value), examples)
    if not measured:
        raise FineTuneError("the tasks gave no number")
    return measured
