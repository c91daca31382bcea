"""``kvrun remote``: fine-tunes through a control plane."""

from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Yes,
    confirm,
    connect,
    save,
    show,
    the_workspace,
)
from kvrun.client.errors import ClientError
from kvrun.client.results.models import FineTuneJob

Name = Annotated[str, typer.Argument(metavar="NAME", help="The fine-tune's name.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="Examples, JSON Lines.")]


def finetunes(
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show fine-tunes with their evaluations, and jobs that are not done.

    Example: kvrun remote finetunes
    """
    with connect(api_url, api_key_file) as client:
        found = client.finetunes.list(the_workspace(client, workspace).id)
    if as_json:
        print_json(found)
        return
    show(
        found.items,
        False,
        ("name", "base", "evaluated", "loss", "base's loss", "deleted"),
        lambda f: (
            f.name,
            f.evaluation.base,
            f.evaluation.evaluated_at[:19],
            f"{f.evaluation.tuned_score.loss:.3f}",
            f"{f.evaluation.base_score.loss:.3f}",
            f.deleted_at[:19] or "-",
        ),
    )
    for job in found.jobs:
        _print_job(job)


def finetune(
    name: Name,
    statement: Annotated[
        Path | None,
        typer.Option("--statement", metavar="FILE", help="Write its signed evaluation here."),
    ] = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Have every byte of a fine-tune checked, and show its evaluation as JSON.

    Ends with status 1 where something does not hold.

    Example: kvrun remote finetune support-1 --statement support-1.json
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        found = client.finetunes.get(place, name)
        if statement is not None:
            save(statement, client.finetunes.statement(place, name))
    print_json(found)
    raise typer.Exit(0 if found.holds else 1)


def create(
    name: Annotated[str, typer.Option(help="What to call it.")],
    base: Annotated[str, typer.Option(help='What to tune, by the control plane\'s path; "demo".')],
    data: Data,
    eval_data: Annotated[
        Path | None,
        typer.Option("--eval", metavar="FILE", help="Examples to evaluate with; else one in ten."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Times over the data.")] = 3,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Hand examples over and begin a fine-tune; `kvrun remote finetunes` says how far it is.

    Example: kvrun remote finetune-create --name support-1 --base demo --data train.jsonl
    """
    examples, held_out = _text(data), _text(eval_data) if eval_data is not None else ""
    with connect(api_url, api_key_file) as client:
        job = client.finetunes.create(
            the_workspace(client, workspace).id,
            name=name,
            base=base,
            data=examples,
            eval_data=held_out,
            epochs=epochs,
        )
    _print_job(job)


def resume(
    name: Name,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Go on with a job that was stopped or cut short.

    Example: kvrun remote finetune-resume support-1
    """
    with connect(api_url, api_key_file) as client:
        _print_job(client.finetunes.resume(the_workspace(client, workspace).id, name))


def cancel(
    name: Name,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Ask a running job to stop after its current step. Ends with status 1 where none runs.

    Example: kvrun remote finetune-cancel support-1
    """
    with connect(api_url, api_key_file) as client:
        done = client.finetunes.cancel(the_workspace(client, workspace).id, name)
    typer.echo("it stops after its current step" if done.asked else "no process works on it")
    raise typer.Exit(0 if done.asked else 1)


def delete(
    name: Name,
    yes: Yes = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Delete the weights of a fine-tune, or an unfinished job. The evaluation stays on record.

    Example: kvrun remote finetune-delete support-1
    """
    confirm(f"Delete the fine-tune {name}?", yes)
    with connect(api_url, api_key_file) as client:
        client.finetunes.delete(the_workspace(client, workspace).id, name)
    typer.echo("deleted")


def _print_job(job: FineTuneJob) -> None:
    line = f"job {job.name}: {job.state}, step {job.step} of {job.steps}"
    console().print(line)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"{file} cannot be read: {error}") from None
