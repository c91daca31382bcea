"""A fine-tune from its data on: train, then merge, evaluate and sign. Cut short, it goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from kvrun.audit.record import format_time
from kvrun.errors import KvrunError
from kvrun.finetune.dataset import MAX_FILE_BYTES, Dataset, hold_out, overlap, parse_dataset
from kvrun.finetune.encode import encode_all
from kvrun.finetune.errors import FineTuneCancelledError, FineTuneError, FineTuneTakenError
from kvrun.finetune.evaluation import DataFile, Evaluation, EvaluationData
from kvrun.finetune.finishing import Made, Reporter, Surroundings, find_base, finish
from kvrun.finetune.gate import ADAPTER_CONFIG
from kvrun.finetune.harness import require_harness
from kvrun.finetune.memory import allowed_here, check_need, need_of, shape_of, within
from kvrun.finetune.store import JobNote
from kvrun.finetune.taskfolder import TaskFolder, read_tasks
from kvrun.finetune.tools import load_model, load_tokenizer, load_tools
from kvrun.finetune.training import Plan, check_plan, train

ID_BYTES = 12
MEMORY_SETTING = "control.finetune_memory_bytes"
_NOTE_EVERY = 10


def begin(
    around: Surroundings,
    name: str,
    base: str,
    data: Path,
    eval_data: Path | None,
    plan: Plan,
    tasks: TaskFolder | None = None,
) -> Evaluation:
    """Train, evaluate and sign a new fine-tune; it lies in the store's folder of that name.

    Raises FineTuneError for a name that is taken and for data that cannot be used;
    FineTuneCancelledError once it is told to stop: ``resume`` goes on.
    """
    check_plan(plan)
    around.store.folder(name)
    with around.store.working(name) as job:
        note = _new_job(around, job, name, base, data, eval_data, plan, tasks)
        return _run(around, job, note)


def prepare(
    around: Surroundings,
    name: str,
    base: str,
    data: Path,
    eval_data: Path | None,
    plan: Plan,
    tasks: TaskFolder | None = None,
) -> JobNote:
    """Note a job that another process carries out with ``resume``. Raises like ``begin``."""
    check_plan(plan)
    around.store.folder(name)
    with around.store.working(name) as job:
        return _new_job(around, job, name, base, data, eval_data, plan, tasks)


def resume(around: Surroundings, name: str) -> Evaluation:
    """Go on with a job that was cut short, from its last checkpoint. Raises like ``begin``."""
    note = around.store.job(name)
    with around.store.working(name) as job:
        return _run(around, job, msgspec.structs.replace(note, state="running", said=""))


def adopt(
    around: Surroundings,
    name: str,
    base: str,
    adapter: Path,
    eval_data: Path,
    max_tokens: int,
    tasks: TaskFolder | None = None,
) -> Evaluation:
    """Merge an adapter that was made elsewhere into its base, evaluate it and sign.

    Only LoRA adapters in safetensors are read. Raises FineTuneError.
    """
    config = _adapter_config(adapter)
    with around.store.working(name) as job:
        if around.store.folder(name).exists() or (job / "job.json").exists():
            raise FineTuneError(f"the name {name!r} is taken", hint="Choose another --name.")
        tests = read_dataset(eval_data)
        tools = load_tools()
        found = find_base(base, around.report.say)
        tokenizer = load_tokenizer(tools, str(found.folder))
        examples = encode_all(tokenizer, tests.examples, max_tokens)
        model = load_model(tools, str(found.folder))
        try:
            wrapped = tools.peft.PeftModel.from_pretrained(model, str(adapter))
        except Exception as error:  # whatever does not fit is the adapter's
            raise FineTuneError(
                f"{adapter} does not fit {base}: {str(error)[:300]}",
                hint=f"It says it was made for {config.get('base_model_name_or_path')!r}.",
            ) from None
        made = Made(
            id=around.random_bytes(ID_BYTES).hex(),
            name=name,
            origin="imported",
            base=found,
            training=None,
            plan=None,
            data=EvaluationData(
                sha256=tests.sha256,
                size_bytes=tests.size_bytes,
                examples=len(tests.examples),
                split="given",
                overlap=None,
            ),
            tasks=tasks,
        )
        trained = [wrapped]
        del model, wrapped
        done = finish(around, tools, made, trained.pop, tokenizer, examples)
        shutil.rmtree(job)
        return done


def read_dataset(path: Path) -> Dataset:
    """The examples in a file. Raises FineTuneError that names the lines that are wrong."""
    try:
        with path.open("rb") as file:
            return parse_dataset(file.read(MAX_FILE_BYTES + 1), str(path))
    except OSError as error:
        raise FineTuneError(f"{path} cannot be read: {error.strerror}") from None


def _new_job(
    around: Surroundings,
    job: Path,
    name: str,
    base: str,
    data: Path,
    eval_data: Path | None,
    plan: Plan,
    tasks: TaskFolder | None,
) -> JobNote:
    if around.store.folder(name).exists():
        raise FineTuneTakenError(
            f"there is a fine-tune {name!r} already", hint="Choose another --name."
        )
    if (job / "job.json").exists():
        raise FineTuneTakenError(
            f"there is an unfinished job {name!r}",
            hint=f"`kvrun finetune resume {name}` goes on with it,"
            f" `kvrun finetune delete {name}` drops it.",
        )
    note = JobNote(
        id=around.random_bytes(ID_BYTES).hex(),
        name=name,
        base=base,
        data=str(data.absolute()),
        data_sha256=read_dataset(data).sha256,
        eval_data=str(eval_data.absolute()) if eval_data is not None else "",
        eval_sha256=read_dataset(eval_data).sha256 if eval_data is not None else "",
        plan=plan,
        tasks_folder=str(tasks.folder) if tasks is not None else "",
        tasks=tasks.names if tasks is not None else (),
        tasks_sha256=tasks.sha256 if tasks is not None else "",
        started_at=format_time(around.now()),
    )
    around.store.note_job(job, note)
    return note


def _run(around: Surroundings, job: Path, note: JobNote) -> Evaluation:
    (job / "cancel").unlink(missing_ok=True)
    asked = around.should_stop
    shown = around.report
    note = msgspec.structs.replace(note, what="")

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal note
        if what != note.what:
            note = msgspec.structs.replace(note, what=what)
            around.store.note_job(job, note)
        shown.progress(what, done, total)

    around = replace(
        around,
        should_stop=lambda: asked() or (job / "cancel").exists(),
        report=Reporter(shown.say, on_progress),
    )

    def on_step(step: int, steps: int, loss: float) -> None:
        nonlocal note
        note = msgspec.structs.replace(note, step=step, steps=steps, loss=loss)
        if step % _NOTE_EVERY == 0 or step == steps:
            around.store.note_job(job, note)
        around.report.progress("training", step, steps)

    around.store.note_job(job, note)
    try:
        done = _train_and_finish(around, job, note, on_step)
    except FineTuneCancelledError as error:
        around.store.note_job(job, msgspec.structs.replace(note, state="cancelled"))
        raise FineTuneCancelledError(
            error.message, hint=f"`kvrun finetune resume {note.name}` goes on."
        ) from None
    except Exception as error:
        said = error.message if isinstance(error, KvrunError) else type(error).__name__
        around.store.note_job(job, msgspec.structs.replace(note, state="failed", said=said[:500]))
        raise
    # Whoever carried it out: what was handed over with it is kept no longer than the job.
    shutil.rmtree(around.store.given_folder(note.name), ignore_errors=True)
    shutil.rmtree(job)
    return done


def _train_and_finish(
    around: Surroundings, job: Path, note: JobNote, on_step: Callable[[int, int, float], None]
) -> Evaluation:
    data = _same(read_dataset(Path(note.data)), note.data_sha256, note.data)
    if note.eval_data:
        tests = _same(read_dataset(Path(note.eval_data)), note.eval_sha256, note.eval_data)
        train_on, held = data.examples, tests.examples
    else:
        tests = data
        train_on, held = hold_out(data.examples, note.plan.seed)
    tasks = _tasks_of(note)
    tools = load_tools()
    base = find_base(note.base, around.report.say)
    tokenizer = load_tokenizer(tools, str(base.folder))
    encoded = encode_all(tokenizer, train_on, note.plan.max_tokens)
    encoded_tests = encode_all(tokenizer, held, note.plan.max_tokens)
    around.report.say(
        f"training on {len(encoded)} examples, {len(held)} to evaluate with, on the {tools.device}"
    )
    if around.memory_bytes is not None:
        need = need_of(
            shape_of(base.folder), note.plan, [*encoded, *encoded_tests], data.size_bytes
        )
        check_need(need, note.plan, allowed_here(tools, around.memory_bytes), MEMORY_SETTING)
    made = Made(
        id=note.id,
        name=note.name,
        origin="trained",
        base=base,
        training=DataFile(sha256=data.sha256, size_bytes=data.size_bytes, examples=len(encoded)),
        plan=note.plan,
        data=EvaluationData(
            sha256=tests.sha256,
            size_bytes=tests.size_bytes,
            examples=len(held),
            split="given" if note.eval_data else "held_out",
            overlap=overlap(train_on, held),
        ),
        tasks=tasks,
    )
    with within(tools, around.memory_bytes, MEMORY_SETTING):
        trained = [
            train(
                tools,
                load_model(tools, str(base.folder)),
                encoded,
                note.plan,
                job / "checkpoint.pt",
                binding=f"{note.id}:{base.digest}:{note.data_sha256}",
                should_stop=around.should_stop,
                on_step=on_step,
            )
        ]
        return finish(around, tools, made, trained.pop, tokenizer, encoded_tests)


def _tasks_of(note: JobNote) -> TaskFolder | None:
    if not note.tasks:
        return None
    require_harness()
    found = read_tasks(Path(note.tasks_folder), note.tasks)
    if found.sha256 != note.tasks_sha256:
        raise FineTuneError(
            f"the tasks in {note.tasks_folder} are not those that the job began with",
            hint="Put the files back, or delete the job and begin anew.",
        )
    return found


def _adapter_config(adapter: Path) -> dict[str, object]:
    """An adapter's configuration, if it is one that may be read. Raises FineTuneError."""
    path = adapter / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes()[: 1 << 20])
    except (OSError, ValueError) as error:
        raise FineTuneError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise FineTuneError(f"{adapter} is no LoRA adapter", hint="Its peft_type must be LORA.")
    if not (adapter / "adapter_model.safetensors").is_file():
        raise FineTuneError(
            f"{adapter} has no adapter_model.safetensors",
            hint="Other formats can run code when they are read, and are not.",
        )
    return config


def _same(data: Dataset, expected: str, name: str) -> Dataset:
    if data.sha256 != expected:
        raise FineTuneError(
            f"{name} is not the file that the job began with (its SHA-256 is {data.sha256})",
            hint="Put the file back, or delete the job and begin anew.",
        )
    return data
