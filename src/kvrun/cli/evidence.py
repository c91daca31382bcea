"""``kvrun evidence``: make what auditors take away; and its half of ``kvrun verify``."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvrun.cli.options import (
    DEFAULT_CONFIG,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.remote import DEFAULT_API_URL, ApiKeyFile, ApiUrl, connect, save, the_workspace
from kvrun.cli.trust import read_anchor
from kvrun.client import Client
from kvrun.errors import KvrunError

app = typer.Typer(no_args_is_help=True)

Since = Annotated[str, typer.Option("--from", help="First day of the period, UTC: 2026-01-01.")]
Until = Annotated[str, typer.Option("--to", help="First day after it; it is not part of it.")]
Sample = Annotated[int, typer.Option(help="Records to draw, each with an inclusion proof.")]
Seed = Annotated[str, typer.Option(help="What the draw follows from: the auditor chooses it.")]
Full = Annotated[bool, typer.Option("--full", help="Put the segments themselves in, too.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The new file.")]
OfWorkspace = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        metavar="NAME",
        help="Of all deployments of a workspace, made by the control plane; its id or name.",
    ),
]
_POLL_S = 0.5


@app.callback()
def evidence() -> None:
    """Make the evidence of a period: one file that auditors check without this installation."""


@app.command()
def export(
    since: Since,
    until: Until,
    output: Output = Path("evidence.zip"),
    sample: Sample = 25,
    seed: Seed = "1",
    full: Full = False,
    workspace: OfWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Put everything that shows what was governed in a period into one signed file.

    Logs, certificates, lists of requests and changes, configuration, public keys, formats and
    verifiers; and which requirement they are evidence for. It holds no prompt, no key and no end
    user's id. Interrupted, it goes on with what was finished when it is called again. That it was
    made is on record first. It is about the deployment of the configuration file; with --workspace
    about all of a workspace's, and asks the control plane with an API key of scope evidence.

    Example: kvrun evidence export --from 2026-01-01 --to 2026-04-01 -o evidence.zip
    """
    if workspace:
        with connect(api_url, api_key_file) as client:
            asked = (since, until, sample, seed, full)
            _export_workspace(client, the_workspace(client, workspace).id, asked, output)
        return
    from kvrun.api.home import home_of
    from kvrun.control.plane import ControlPlane
    from kvrun.evidence.export import Request, Step, export_bundle
    from kvrun.evidence.period import parse_period
    from kvrun.evidence.scope import scope_of_config

    config = read_config(config_file)
    request = Request(parse_period(since, until), sample=sample, seed=seed, full=full)
    ControlPlane(config).journal.record_read(
        b"",
        reason=f"evidence of {request.period} by uid {os.getuid()}",
        deployment=config.deployment.name,
    )
    with _progress() as progress:
        bar = progress.add_task("evidence", total=None)

        def show(step: Step) -> None:
            progress.update(bar, total=step.steps, completed=step.done, description=step.what)

        path = export_bundle(
            scope_of_config(config, home_of(config)), request, output, on_step=show
        )
    typer.echo(f"evidence: {path} ({path.stat().st_size:,} bytes)")


@app.command()
def trust(
    workspace: OfWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print the trust anchor with which others check evidence of this deployment.

    It has the keys of evidence, certificates and logs, and of who countersigns. Hand it over on
    another way than the evidence, and compare fingerprints by voice.

    Example: kvrun evidence trust > anchor.json
    """
    if workspace:
        with connect(api_url, api_key_file) as client:
            found = client.evidence.trust_anchor(the_workspace(client, workspace).id)
        typer.echo(found.decode(), nl=False)
        return
    from kvrun.api.home import home_of
    from kvrun.evidence.anchor import scope_anchor
    from kvrun.evidence.scope import scope_of_config

    config = read_config(config_file)
    typer.echo(scope_anchor(scope_of_config(config, home_of(config))).decode(), nl=False)


def _export_workspace(
    client: Client, workspace_id: str, asked: tuple[str, str, int, str, bool], output: Path
) -> None:
    """Have the control plane make it, follow it, and fetch the file."""
    since, until, sample, seed, full = asked
    if output.exists():
        raise KvrunError(f"{output} is there already", hint="Name another file with -o.")
    job = client.evidence.start(workspace_id, since, until, sample=sample, seed=seed, full=full)
    with _progress() as progress:
        bar = progress.add_task("evidence", total=None)
        while job.state == "running":
            progress.update(
                bar, total=job.steps or None, completed=job.done, description=job.what or "begun"
            )
            time.sleep(_POLL_S)
            job = client.evidence.get(workspace_id, job.id)
    if job.state != "done":
        raise KvrunError(
            f"the evidence was not made: {job.error or job.state}",
            hint="Ask again: it goes on with what was finished.",
        )
    save(output, client.evidence.download(workspace_id, job.id), new=True)
    typer.echo(f"evidence: {output} ({output.stat().st_size:,} bytes)")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console(stderr=True), transient=True)


def is_bundle(path: Path) -> bool:
    """Whether a file claims to be a zip archive."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"PK\3\4", b"PK\5\6") or path.suffix == ".zip"
    except OSError:
        return False


def verify_bundle(path: Path, trust_file: Path | None, *, as_json: bool) -> int:
    """Check a bundle and print one table; the exit status."""
    from kvrun.evidence.check import check_bundle
    from kvrun.evidence.report import BundleReport

    anchor = read_anchor(trust_file) if trust_file else None
    with console(stderr=True).status("checking") as status:
        report: BundleReport = check_bundle(
            path,
            anchor=anchor,
            now=time.time(),
            on_check=lambda check: status.update(f"checking {check.value}"),
        )
    if as_json:
        print_json(
            {"kind": "evidence", "exit_code": report.exit_code, "checks": list(report.results)}
        )
        return report.exit_code
    rows = table("check", "verdict", "what was found")
    for item in report.results:
        rows.add_row(item.check.value, item.verdict.value, item.detail)
    console().print(rows)
    if not report.trusted:
        typer.echo("signer: self-asserted")
    return report.exit_code
