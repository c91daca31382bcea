"""``kvrun erase workspace|account|tenants``: several deployments, through the control plane."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvrun.cli.erase import (
    Ask,
    CertifyPending,
    Confirm,
    LegalBasis,
    OpeningFile,
    PlanOnly,
    Reference,
    write_opening,
)
from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.cli.plan_shown import show_plan
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    connect,
    read_key,
    the_workspace,
)
from kvrun.client import Client
from kvrun.client.results.evidence import JointErased


def workspace(
    name: Annotated[str, typer.Argument(metavar="WORKSPACE", help="Its id or name.")],
    plan: PlanOnly = False,
    confirm: Confirm = "",
    ask: Ask = False,
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    certify_pending: CertifyPending = False,
    opening: OpeningFile = None,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase every deployment of a workspace, stopped ones included, through the control plane.

    Every log is collected first. Each deployment gives a certificate, also where it held nothing;
    one parent certificate lists them. Cut short, ask again with the same reference: it goes on.

    Example: kvrun erase workspace acme --plan
    """
    with connect(api_url, api_key_file) as client:
        wide = _Wide(client, the_workspace(client, name).id, "workspace", ["workspace", name])
        wide.run(plan, ask, confirm, reference, legal_basis, certify_pending, opening, as_json)


def account(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[WORKSPACE]",
            envvar="KVRUN_WORKSPACE",
            help="A workspace of the account: the API key's.",
        ),
    ] = "",
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also-key-file",
            metavar="FILE",
            help="File with an API key of another workspace of the account. Repeat it.",
        ),
    ] = None,
    plan: PlanOnly = False,
    confirm: Confirm = "",
    ask: Ask = False,
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    certify_pending: CertifyPending = False,
    opening: OpeningFile = None,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase every deployment of every workspace of an account, through the control plane.

    As for a workspace. It needs erase_wide in each of them, and an API key is of one workspace:
    give the others' with --also-key-file.

    Example: kvrun erase account acme --also-key-file other.key --plan
    """
    keys = tuple(key for file in also or [] if (key := read_key(file)))
    files = (word for file in also or [] for word in ("--also-key-file", str(file)))
    command = ["account", *([name] if name else []), *files]
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, name).id
        wide = _Wide(client, place, "account", command, also=keys)
        wide.run(plan, ask, confirm, reference, legal_basis, certify_pending, opening, as_json)


def tenants(
    label: Annotated[str, typer.Option(metavar="NAME=VALUE", help="The label that they have.")],
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", envvar="KVRUN_WORKSPACE", help="Its id or name.")
    ] = "",
    plan: PlanOnly = False,
    confirm: Confirm = "",
    ask: Ask = False,
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    certify_pending: CertifyPending = False,
    opening: OpeningFile = None,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase the end users that have a label, in every deployment of a workspace.

    Labels are what you said of end users (docs/console.md). Each deployment where somebody has the
    label gives a certificate; one parent certificate lists them.

    Example: kvrun erase tenants --label customer=acme --plan
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        wide = _Wide(client, place, "tenants", ["tenants", "--label", label], label)
        wide.run(plan, ask, confirm, reference, legal_basis, certify_pending, opening, as_json)


class _Wide:
    """One such erasure; ``command`` is what names it on the command line, word by word."""

    def __init__(
        self,
        client: Client,
        workspace_id: str,
        kind: str,
        command: Sequence[str],
        label: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        self._client = client
        self._workspace_id = workspace_id
        self._kind = kind
        self._label = label
        self._also = also
        self._command = command

    def run(
        self,
        plan: bool,
        ask: bool,
        confirm: str,
        reference: str,
        legal_basis: str,
        certify_pending: bool,
        opening: Path | None,
        as_json: bool,
    ) -> None:
        """Plan it, ask a second person, or erase."""
        erasures, place = self._client.erasures, self._workspace_id
        if plan:
            counted = erasures.plan_wide(place, kind=self._kind, label=self._label, also=self._also)
            if as_json:
                print_json(counted)
            else:
                parts = counted.deployments
                show_plan(
                    [part.plan for part in parts if part.plan is not None],
                    ["erase", *self._command],
                    counted.token,
                    needs_approval=counted.needs_approval,
                    problems=[(part.name, part.problem) for part in parts if part.problem],
                )
            return
        if ask:
            asked = erasures.ask_wide_approval(
                place, confirm, kind=self._kind, label=self._label, also=self._also
            )
            if as_json:
                print_json(asked)
            else:
                typer.echo(
                    f"{len(asked)} approval(s) asked for; erase once they are given"
                    if asked
                    else "nobody else could agree, so no approval is needed"
                )
            return
        done = erasures.erase_wide(
            place,
            kind=self._kind,
            label=self._label,
            also=self._also,
            confirm=confirm,
            reference=reference,
            legal_basis=legal_basis,
            certify_pending=certify_pending,
        )
        if as_json:
            print_json(done)
            sys.stdout.flush()
        else:
            hand_out(done, opening)
        raise typer.Exit(1 if any(child.problem for child in done.deployments) else 0)


def hand_out(done: JointErased, opening: Path | None) -> None:
    """What became of it, for people; openings are written to files."""
    first = opening or Path(f"{done.id}.opening.json")
    for certificate_id, text in done.openings.items():
        own = first if certificate_id == done.id else None
        write_opening(text, own or first.with_name(f"{certificate_id}.opening.json"))
    rows = table("deployment", "outcome", "certificate")
    for child in done.deployments:
        outcome = child.outcome.replace("_", " ")
        rows.add_row(child.deployment, outcome, child.certificate_id)
    out = console()
    out.print(rows)
    for child in done.deployments:
        if child.problem:
            more = f" {child.deployment}: {child.problem}"
            out.print(Text.assemble(("pending:", "yellow"), more))
    typer.echo(f"certificate over all: {done.id} (kvrun certificate list shows where)")
    typer.echo(f"opening, kept nowhere else: {first}; the others are beside it, by certificate id")
