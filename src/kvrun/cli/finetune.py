"""``kvrun finetune``: make, list, check, import and delete fine-tunes with their evaluations."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from kvrun.audit.record import format_time
from kvrun.cli.finetune_shown import check_json, print_check, print_evaluation, share, show_done
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.config import KvrunConfig
from kvrun.finetune.evaluation import check_folder
from kvrun.finetune.finishing import Reporter, Surroundings
from kvrun.finetune.gate import keys_of
from kvrun.finetune.harness import require_harness
from kvrun.finetune.store import FineTunes
from kvrun.finetune.taskfolder import TaskFolder, read_tasks
from kvrun.finetune.training import Plan
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord, SigningRing
from kvrun.launch.trust import own_keys

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The fine-tune's name.")]
Base = Annotated[str, typer.Option(help='Folder, Hugging Face id that is on this machine, "demo".')]
TaskNames = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="A task of lm-eval; again for more."),
]
TasksFrom = Annotated[
    Path | None,
    typer.Option(
        "--tasks-from", metavar="FOLDER", help="Where tasks are: YAML files, JSON Lines beside."
    ),
]
_DEFAULT = Plan()


@app.callback()
def finetune() -> None:
    """Fine-tunes: LoRA on a model of yours, each with a signed evaluation beside its weights."""


@app.command()
def create(
    base: Base,
    data: Annotated[Path, typer.Option(metavar="FILE", help="Examples, JSON Lines.")],
    name: Annotated[str, typer.Option(help="What to call it; by default base and data say.")] = "",
    eval_data: Annotated[
        Path | None,
        typer.Option(
            "--eval", metavar="FILE", help="Examples to evaluate with; else one in ten is held out."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Times over the data.")] = _DEFAULT.epochs,
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = _DEFAULT.batch_size,
    learning_rate: Annotated[
        float, typer.Option(help="Highest learning rate.")
    ] = _DEFAULT.learning_rate,
    rank: Annotated[int, typer.Option(help="LoRA's rank.")] = _DEFAULT.rank,
    alpha: Annotated[int, typer.Option(help="LoRA's alpha.")] = _DEFAULT.alpha,
    max_tokens: Annotated[
        int, typer.Option(help="Longest example; a longer one is an error.")
    ] = _DEFAULT.max_tokens,
    seed: Annotated[int, typer.Option(help="Decides order, split and weights.")] = _DEFAULT.seed,
    checkpoint_every: Annotated[
        int, typer.Option(help="Steps between checkpoints.")
    ] = _DEFAULT.checkpoint_every,
    task: TaskNames = None,
    tasks_from: TasksFrom = None,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Train a LoRA adapter, merge it, evaluate base and result, and sign the evaluation.

    A line of the data is {"prompt": "...", "completion": "..."} or {"messages": [...]} with the
    assistant's answer last. Ctrl-C stops after the current step; `kvrun finetune resume` goes on.
    Tasks of lm-eval that are named are measured too; they come from a folder, nothing is fetched.
    Serve the result with `kvrun up --model FOLDER`.

    Example: kvrun finetune create --name support-1 --base demo --data train.jsonl
    """
    from kvrun.finetune.job import begin

    plan = Plan(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        rank=rank,
        alpha=alpha,
        max_tokens=max_tokens,
        seed=seed,
        checkpoint_every=checkpoint_every,
    )
    config = read_config(config_file)
    with _working(config) as around:
        name = name or _default_name(base, data)
        done = begin(around, name, base, data, eval_data, plan, _tasks(task, tasks_from))
    show_done(config, done, as_json)


@app.command()
def resume(name: Name, as_json: AsJson = False, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Go on with a job that was stopped or cut short, from its last checkpoint.

    Example: kvrun finetune resume support-1
    """
    from kvrun.finetune.job import resume as go_on

    config = read_config(config_file)
    with _working(config) as around:
        done = go_on(around, name)
    show_done(config, done, as_json)


@app.command()
def cancel(name: Name, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Ask a running job to stop after its current step. Ends with status 1 where none runs.

    Example: kvrun finetune cancel support-1
    """
    asked = FineTunes(read_config(config_file).layout.finetunes).cancel(name)
    typer.echo("it stops after its current step" if asked else "no process works on it")
    raise typer.Exit(0 if asked else 1)


@app.command("import")
def import_command(
    adapter: Annotated[Path, typer.Argument(metavar="FOLDER", help="A PEFT LoRA adapter.")],
    base: Base,
    name: Annotated[str, typer.Option(help="What to call it.")],
    eval_data: Annotated[
        Path, typer.Option("--eval", metavar="FILE", help="Examples to evaluate with.")
    ],
    max_tokens: Annotated[int, typer.Option(help="Longest example.")] = _DEFAULT.max_tokens,
    task: TaskNames = None,
    tasks_from: TasksFrom = None,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Merge an adapter that was made elsewhere into its base, and evaluate it like our own.

    Example: kvrun finetune import ./adapter --base demo --name support-2 --eval eval.jsonl
    """
    from kvrun.finetune.job import adopt

    config = read_config(config_file)
    with _working(config) as around:
        tasks = _tasks(task, tasks_from)
        done = adopt(around, name, base, adapter, eval_data, max_tokens, tasks)
    show_done(config, done, as_json)


@app.command("list")
def list_command(
    deleted: Annotated[
        bool, typer.Option("--all", help="Also those that were deleted; their records stay.")
    ] = False,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """List fine-tunes with their scores, and jobs that are not done. Nothing is verified.

    Example: kvrun finetune list --json
    """
    store = FineTunes(read_config(config_file).layout.finetunes)
    kept = [item for item in store.records() if deleted or not item.note.deleted_at]
    jobs = store.jobs()
    if as_json:
        print_json(
            {
                "finetunes": [
                    {
                        **msgspec.to_builtins(item.note),
                        "folder": "" if item.note.deleted_at else str(store.folder(item.note.name)),
                        "evaluation": item.evaluation,
                    }
                    for item in kept
                ],
                "jobs": [
                    {**msgspec.to_builtins(view.note), "running": view.running} for view in jobs
                ],
            }
        )
        return
    if kept:
        rows = table("name", "base", "loss", "exact", "evaluated", "")
        for item in kept:
            found = item.evaluation
            rows.add_row(
                found.name,
                found.base.model,
                f"{found.base_score.loss:.3f} → {found.tuned_score.loss:.3f}",
                f"{share(found.base_score)} → {share(found.tuned_score)}",
                found.evaluated_at[:16],
                "deleted" if item.note.deleted_at else "",
            )
        console().print(rows)
    for view in jobs:
        note, how = view.note, "running" if view.running else view.note.state
        how = "cut short" if how == "running" and not view.running else how
        console().print(f"{note.name}: {how} at step {note.step} of {note.steps}")
    if not kept and not jobs:
        console().print("no fine-tune")


@app.command()
def show(name: Name, as_json: AsJson = False, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Show a fine-tune's evaluation, base against tuned. Ends like `kvrun finetune verify`.

    Example: kvrun finetune show support-1
    """
    config = read_config(config_file)
    store = FineTunes(config.layout.finetunes)
    check = store.check(name, _known(config))
    if as_json:
        print_json({"folder": str(store.folder(name)), **check_json(check)})
    else:
        if check.evaluation is not None:
            print_evaluation(check.evaluation)
        print_check(store.folder(name), check)
    raise typer.Exit(0 if check.holds else 1)


@app.command()
def verify(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A fine-tune's name, or a folder's path.")
    ],
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Check every byte of a fine-tune against its signed evaluation. Status 1: it does not hold.

    Example: kvrun finetune verify support-1
    """
    config = read_config(config_file)
    folder = Path(name)
    if os.sep not in name:
        folder = FineTunes(config.layout.finetunes).existing(name)
    check = check_folder(folder, _known(config))
    if as_json:
        print_json({"folder": str(folder), **check_json(check)})
    else:
        print_check(folder, check)
    raise typer.Exit(0 if check.holds else 1)


@app.command()
def delete(name: Name, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Delete the weights of a fine-tune, or an unfinished job. The evaluation stays on record.

    Example: kvrun finetune delete support-1
    """
    store = FineTunes(read_config(config_file).layout.finetunes)
    had = store.delete(name, format_time(time.time()))
    typer.echo("deleted; its evaluation stays on record" if had else "the unfinished job is gone")


def _tasks(names: list[str] | None, folder: Path | None) -> TaskFolder | None:
    if not names:
        return None
    if folder is None:
        raise typer.BadParameter("name the folder with the tasks", param_hint="--tasks-from")
    require_harness()
    return read_tasks(folder, names)


def _default_name(base: str, data: Path) -> str:
    """``demo-train`` for the base demo and train.jsonl."""
    text = f"{Path(base).name}-{data.stem}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:63] or "finetune"


def _known(config: KvrunConfig) -> list[PublicKeyRecord]:
    own = [key.public() for key in own_keys(config.layout)]
    return [*own, *keys_of(config.deployment.evaluation_keys)]


@contextmanager
def _working(config: KvrunConfig) -> Iterator[Surroundings]:
    """What a job needs; a progress bar; and Ctrl-C or SIGTERM stop it after its current step."""
    stop = False

    def on_signal(*_: object) -> None:
        nonlocal stop
        stop = True

    ring = SigningRing(config.layout.signing_keys, now=time.time)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, on_signal) for number in numbers]
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
    )
    try:
        with bar:
            yield Surroundings(
                store=FineTunes(config.layout.finetunes),
                signer=lambda: ring.load_or_create(KeyPurpose.EVIDENCE),
                now=time.time,
                random_bytes=os.urandom,
                should_stop=lambda: stop,
                report=Reporter(
                    say=lambda text: bar.console.print(text),
                    progress=_progress(bar),
                ),
            )
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _progress(bar: Progress) -> Callable[[str, int, int], None]:
    """One line of the bar for each kind of work."""
    tasks: dict[str, TaskID] = {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done)

    return tell
