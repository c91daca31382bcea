"""What ``kvrun finetune`` shows of an evaluation and of its check."""

from __future__ import annotations

from pathlib import Path

import typer

from kvrun.cli.options import console, print_json, table
from kvrun.config import KvrunConfig
from kvrun.finetune.evaluation import Evaluation, FolderCheck
from kvrun.finetune.scoring import Score
from kvrun.finetune.store import FineTunes


def show_done(config: KvrunConfig, done: Evaluation, as_json: bool) -> None:
    """A job that is done."""
    folder = FineTunes(config.layout.finetunes).folder(done.name)
    if as_json:
        print_json({"folder": str(folder), "evaluation": done})
        return
    print_evaluation(done)
    typer.echo(f"serve it: kvrun up --model {folder}")


def print_evaluation(found: Evaluation) -> None:
    """Base against tuned, and on what."""
    rows = table("", "base", "tuned", title=f"{found.name} on {found.base.model}")
    rows.add_row(
        "loss (nats a token)", f"{found.base_score.loss:.4f}", f"{found.tuned_score.loss:.4f}"
    )
    rows.add_row("exact matches", share(found.base_score), share(found.tuned_score))
    for item in found.tasks.scores if found.tasks is not None else ():
        what = f"{item.task}: {item.metric}, {item.examples} examples"
        rows.add_row(what, f"{item.base:.4f}", f"{item.tuned:.4f}")
    console().print(rows)
    data = found.evaluation
    notes = [
        f"evaluated {found.evaluated_at[:16]} with {found.harness} on {data.examples} examples"
        f" ({data.split.replace('_', ' ')}, seed {found.seed}) of the file {data.sha256[:16]}…",
        f"adapter {found.adapter_sha256}",
    ]
    if found.tasks is not None:
        notes.append(f"tasks with {found.tasks.harness}, folder {found.tasks.sha256[:16]}…")
    if data.overlap:
        notes.append(f"{data.overlap} of these examples were trained on word for word")
    if found.origin == "imported":
        notes.append("imported: how it was trained is not known here")
    for note in notes:
        console().print(note)


def print_check(folder: Path, check: FolderCheck) -> None:
    """One line: whether it holds, and what does not."""
    said = check.problem or f"every file is the one that was evaluated; {check.detail}"
    console().print(
        f"{folder}: {'verified' if check.holds else 'NOT VERIFIED'}: {said}", soft_wrap=True
    )


def check_json(check: FolderCheck) -> dict[str, object]:
    """The check as JSON has it."""
    return {
        "holds": check.holds,
        "problem": check.problem,
        "signer": check.signer,
        "evaluation": check.evaluation,
    }


def share(score: Score) -> str:
    """Exact matches of all examples."""
    return f"{score.exact_matches}/{score.examples}"
