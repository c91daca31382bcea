"""From a trained adapter to a folder that can be served: merge, evaluate, sign, put on record.

The folder appears at once, complete and signed, or not at all. What is evaluated is what will be
served: the merged weights, read again from the files that the statement names.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrun import __version__
from kvrun.audit.record import format_time
from kvrun.finetune.encode import Encoded
from kvrun.finetune.errors import FineTuneCancelledError, FineTuneError
from kvrun.finetune.evaluation import (
    EVALUATION_NAME,
    STATEMENT_NAME,
    BaseModel,
    DataFile,
    Evaluation,
    EvaluationData,
    Machine,
    encode_evaluation,
    file_digests,
    sign_folder,
)
from kvrun.finetune.gate import MARK
from kvrun.finetune.harness import Measured, compare, measure
from kvrun.finetune.scoring import Score, score
from kvrun.finetune.store import ADAPTER, FineTunes
from kvrun.finetune.taskfolder import TaskFolder
from kvrun.finetune.tools import Tools, load_model
from kvrun.finetune.training import Plan
from kvrun.keys.signing import SigningKey
from kvrun.models.fingerprint import model_digest
from kvrun.models.folders import appearing
from kvrun.models.resolve import local_folder, resolve_model

ADAPTER_WEIGHTS = f"{ADAPTER}/adapter_model.safetensors"
_COPIED = (".json", ".txt", ".model", ".jinja")
_INDEX = ".index.json"


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who is told how a job goes. ``progress(what, done, total)`` comes often."""

    say: Callable[[str], None] = lambda text: None
    progress: Callable[[str, int, int], None] = lambda what, done, total: None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job needs of the world: a clock, randomness, a signing key, and when to stop.

    ``memory_bytes``: what it may take at most; None where nobody bounds it.
    """

    store: FineTunes
    signer: Callable[[], SigningKey]
    now: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    should_stop: Callable[[], bool] = lambda: False
    report: Reporter = field(default_factory=Reporter)
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """The model to begin with: as it was named, where it lies, and the digest of its files."""

    name: str
    folder: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Made:
    """What is known of a fine-tune before it is scored. ``training`` None: it was imported."""

    id: str
    name: str
    origin: str
    base: Base
    training: DataFile | None
    plan: Plan | None
    data: EvaluationData
    tasks: TaskFolder | None = None

    @property
    def seed(self) -> int:
        """What decides everything that is drawn."""
        return self.plan.seed if self.plan is not None else 0


def find_base(name: str, say: Callable[[str], None]) -> Base:
    """The base model's folder on this machine. Raises ModelError, or FineTuneError without one."""
    folder = local_folder(resolve_model(name, say))
    if folder is None:
        raise FineTuneError(
            f"the base model {name!r} is not on this machine",
            hint="Download it first, or name a folder: a job fetches nothing.",
        )
    return Base(name, folder, model_digest(folder).hex())


def finish(
    around: Surroundings,
    tools: Tools,
    made: Made,
    take_trained: Callable[[], Any],
    tokenizer: Any,
    examples: Sequence[Encoded],
) -> Evaluation:
    """Merge an adapter into its base, evaluate both, sign, and have the folder appear.

    ``take_trained`` gives away the model with the adapter around it: nobody else may hold it, so
    that one model at a time is in memory.
    """
    folder = around.store.folder(made.name)
    with appearing(folder) as scratch:
        around.report.say("merging the adapter into the base")
        wrapped = take_trained()
        wrapped.save_pretrained(str(scratch / ADAPTER), safe_serialization=True)
        (scratch / ADAPTER / "README.md").unlink(missing_ok=True)
        _write_merged(made, wrapped, scratch)
        del wrapped
        gc.collect()

        def scored(what: str, place: Path) -> tuple[Score, Measured]:
            model = load_model(tools, str(place))
            found = score(
                tools,
                model,
                tokenizer,
                examples,
                check_stop=lambda: _check_stop(around),
                on_example=lambda done, total: around.report.progress(what, done, total),
            )
            if made.tasks is None:
                return found, {}
            _check_stop(around)
            around.report.say(f"{what}: {', '.join(made.tasks.names)} with lm-eval")
            return found, measure(made.tasks, model, tokenizer, made.seed)

        base_score, base_tasks = scored("evaluating the base", made.base.folder)
        tuned_score, tuned_tasks = scored("evaluating the fine-tune", scratch)
        evaluation = Evaluation(
            id=made.id,
            name=made.name,
            evaluated_at=format_time(around.now()),
            seed=made.seed,
            base=BaseModel(model=made.base.name, digest=made.base.digest),
            adapter_sha256=file_digests(scratch)[ADAPTER_WEIGHTS],
            origin=made.origin,
            training=made.training,
            plan=made.plan,
            evaluation=made.data,
            base_score=base_score,
            tuned_score=tuned_score,
            tasks=compare(made.tasks, base_tasks, tuned_tasks) if made.tasks else None,
            machine=_machine(tools),
        )
        (scratch / EVALUATION_NAME).write_bytes(encode_evaluation(evaluation))
        statement = sign_folder(
            scratch,
            evaluation,
            around.signer(),
            issued_at=format_time(around.now()),
            version=__version__,
        )
        (scratch / STATEMENT_NAME).write_bytes(statement)
        # On record first: weights without one could not be told from a forgotten evaluation.
        around.store.keep(scratch, evaluation)
    return evaluation


def _write_merged(made: Made, wrapped: Any, folder: Path) -> None:
    """The merged weights; configuration and tokenizer are the base's own files."""
    plain = folder / ".merged"
    merged = wrapped.merge_and_unload(safe_merge=True)
    merged.save_pretrained(str(plain), safe_serialization=True)
    for path in sorted(plain.iterdir()):
        if path.suffix == ".safetensors" or path.name.endswith(_INDEX):
            path.rename(folder / path.name)
    shutil.rmtree(plain)
    for path in sorted(made.base.folder.iterdir()):
        wanted = path.suffix in _COPIED and not path.name.endswith(_INDEX)
        if wanted and path.is_file() and path.name not in (EVALUATION_NAME, STATEMENT_NAME):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config[MARK] = made.id
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _check_stop(around: Surroundings) -> None:
    if around.should_stop():
        raise FineTuneCancelledError("stopped during the evaluation")


def _machine(tools: Tools) -> Machine:
    on_gpu = tools.device == "cuda"
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        device=tools.torch.cuda.get_device_name(0) if on_gpu else "cpu",
        threads=tools.torch.get_num_threads(),
        versions={**tools.versions, "kvrun": __version__, "python": platform.python_version()},
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:120]
    except OSError:
        pass
    return f"{os.cpu_count()} processors"
