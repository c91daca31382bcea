"""``kvrun remote``: evidence and isolation self-tests through a control plane."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    connect,
    save,
    show,
    the_deployment,
    the_workspace,
)
from kvrun.client import Client
from kvrun.client.errors import ClientError
from kvrun.client.results.evidence import Evidence

Since = Annotated[str, typer.Option("--from", help="First day of the period, UTC: 2026-01-01.")]
Until = Annotated[str, typer.Option("--to", help="First day after it; it is not part of it.")]
_LOOK_EVERY_S = 0.5


def controls(
    since: Since,
    until: Until,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which requirement of which framework has evidence in a period.

    Example: kvrun remote controls --from 2026-01-01 --to 2026-04-01
    """
    with connect(api_url, api_key_file) as client:
        found = client.evidence.controls(the_workspace(client, workspace).id, since, until)
    if as_json:
        print_json(found)
        return
    show(
        found.controls,
        False,
        ("framework", "requirement", "evidence", "state", "counted"),
        lambda c: (
            c.framework,
            c.requirement,
            c.evidence,
            c.state.replace("_", " "),
            ", ".join(f"{name} {number}" for name, number in sorted(c.counted.items())),
        ),
    )


def evidence(
    since: Since,
    until: Until,
    deployment: Annotated[str, typer.Option(help="Only of this one: its id or name.")] = "",
    sample: Annotated[int, typer.Option(help="Records to draw, each with a proof.")] = 25,
    seed: Annotated[str, typer.Option(help="What the draw follows from.")] = "1",
    full: Annotated[
        bool, typer.Option("--full", help="The logs' segments themselves too.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The new file.")] = Path(
        "evidence.zip"
    ),
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Have the evidence of a period made, and fetch it. That it is made is on record.

    Example: kvrun remote evidence --from 2026-01-01 --to 2026-04-01 -o evidence.zip
    """
    if output.exists():
        raise ClientError(f"{output} is there already", hint="Name another file with -o.")
    with connect(api_url, api_key_file) as client:
        if deployment:
            found = the_deployment(client, deployment, workspace)
            begun = client.evidence.start_deployment(
                found.id, since, until, sample=sample, seed=seed, full=full
            )
        else:
            place = the_workspace(client, workspace).id
            begun = client.evidence.start(place, since, until, sample=sample, seed=seed, full=full)
        done = _wait(client, begun)
        data = client.evidence.download(done.workspace_id, done.id)
    save(output, data, new=True)
    typer.echo(f"evidence: {output} ({len(data):,} bytes)")


def evidence_list(
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the evidence that a workspace had made in the last days, newest first.

    Example: kvrun remote evidence-list
    """
    with connect(api_url, api_key_file) as client:
        rows = list(client.evidence.list(the_workspace(client, workspace).id))
    show(
        rows,
        as_json,
        ("id", "of", "from", "to", "asked by", "state"),
        lambda e: (
            e.id,
            e.deployment_id or "the workspace",
            e.since,
            e.until,
            e.asked_by,
            e.state,
        ),
    )


def isolation(
    deployment: Named,
    run: Annotated[bool, typer.Option("--run", help="Run one now; it takes a while.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart it too, for the persistent tier.")
    ] = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Show a deployment's isolation self-tests as JSON, or run one with canary users.

    Example: kvrun remote isolation chat --run
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace).id
        if run:
            print_json(client.isolation.run(found, restart=restart))
        else:
            print_json(client.isolation.list(found))


def _wait(client: Client, begun: Evidence) -> Evidence:
    with console(stderr=True).status("making evidence") as status:
        found = begun
        while found.state == "running":
            time.sleep(_LOOK_EVERY_S)
            found = client.evidence.get(begun.workspace_id, begun.id)
            status.update(f"{found.what} ({found.done} of {found.steps})")
    if found.state != "done":
        raise ClientError(f"the evidence is {found.state}: {found.error}")
    return found
