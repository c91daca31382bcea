"""``kvrun remote``: erasing through a control plane, and second persons' words."""

import sys
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
from kvrun.cli.erase_wide import hand_out
from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.cli.plan_shown import show_plan
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    connect,
    moment,
    show,
    the_deployment,
    the_workspace,
)
from kvrun.cli.second_person import state, what
from kvrun.client import Client
from kvrun.client.results.evidence import Erased

_BETWEEN, _AFTER_ID = ",", ":"


def erase(
    deployment: Named,
    tenant: Annotated[str, typer.Option(help="The user's id; left out: all users.")] = "",
    session: Annotated[str, typer.Option(help="Only this session of the user.")] = "",
    plan: PlanOnly = False,
    confirm: Confirm = "",
    ask: Ask = False,
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    opening: OpeningFile = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase a session, a user, or everything in one deployment, with a certificate.

    A session is erased at once; anything wider wants the token that --plan prints, and all users
    also a second person's word where the workspace has one.

    Example: kvrun remote erase chat --tenant alice --plan
    """
    if session and not tenant:
        raise typer.BadParameter(
            "a session is one of a user: name --tenant", param_hint="--session"
        )
    kind = "session" if session else "tenant" if tenant else "deployment"
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        scope = {"kind": kind, "tenant": tenant, "session": session}
        if plan:
            counted = client.erasures.plan(found.id, **scope)
            if as_json:
                print_json(counted)
                return
            command = ["remote", "erase", found.id, *(["--tenant", tenant] if tenant else [])]
            show_plan([counted], command, counted.token, needs_approval=counted.needs_approval)
            return
        if ask:
            asked = client.approvals.ask(found.workspace_id, found.id, confirm)
            if as_json:
                print_json(asked)
            else:
                typer.echo(f"approval {asked.id} is asked for; erase once it is given")
            return
        done = client.erasures.erase(
            found.id, **scope, confirm=confirm, reference=reference, legal_basis=legal_basis
        )
    if as_json:
        print_json(done)
        return
    _show_erased(done, opening)


def erase_user(
    user: Annotated[str, typer.Argument(metavar="USER", help="The id, as in X-KV-Tenant.")],
    plan: PlanOnly = False,
    confirm: Confirm = "",
    reference: Reference = "",
    legal_basis: LegalBasis = "",
    certify_pending: CertifyPending = False,
    opening: OpeningFile = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase one person in every deployment of a workspace, with one certificate over all.

    Cut short, ask again with the same reference: it goes on.

    Example: kvrun remote erase-user alice --plan
    """
    with connect(api_url, api_key_file) as client:
        erase_person(
            client,
            the_workspace(client, workspace).id,
            user,
            command=["remote", "erase-user", user],
            plan=plan,
            confirm=confirm,
            reference=reference,
            legal_basis=legal_basis,
            certify_pending=certify_pending,
            opening=opening,
            as_json=as_json,
        )


def erase_person(
    client: Client,
    place: str,
    user: str,
    *,
    command: list[str],
    plan: bool,
    confirm: str,
    reference: str,
    legal_basis: str,
    certify_pending: bool,
    opening: Path | None,
    as_json: bool,
) -> None:
    """As ``erase_user``, in the workspace with that id; ``command`` asks for the same again."""
    if plan:
        counted = client.erasures.plan_user(place, user)
        token = _BETWEEN.join(
            f"{name}{_AFTER_ID}{found}" for name, found in counted.tokens().items()
        )
        if as_json:
            print_json({"deployments": counted.deployments, "token": token})
            return
        parts = counted.deployments
        show_plan(
            [part.plan for part in parts if part.plan is not None],
            command,
            token,
            problems=[(part.name, part.problem) for part in parts if part.problem],
        )
        return
    tokens = (part.partition(_AFTER_ID) for part in confirm.split(_BETWEEN))
    done = client.erasures.erase_user(
        place,
        user,
        {name: found for name, _, found in tokens if name and found},
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


def erasures(
    deployment: Named,
    erasure_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="One of them, with its steps.")
    ] = "",
    reference: Annotated[str, typer.Option("--ref", help="Only those with this reference.")] = "",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a deployment's erasures, those under way first, or how far one has come.

    Example: kvrun remote erasures chat --ref DSAR-123
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        if erasure_id:
            _show_progress(client, found.id, erasure_id, as_json)
            return
        rows = list(client.erasures.list(found.id, reference=reference))
    show(
        rows,
        as_json,
        ("id", "state", "of", "asked", "reference", "class", "keys"),
        lambda e: (
            e.id,
            e.state,
            e.kind,
            e.requested_at[:19],
            e.reference,
            e.claim_class or "-",
            str(e.keys),
        ),
    )


def approvals(
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show requests for a second person's word. People agree as themselves, in the console or with
    `kvrun erase approve`.

    Example: kvrun remote approvals --workspace acme
    """
    with connect(api_url, api_key_file) as client:
        rows = list(client.approvals.list(the_workspace(client, workspace).id))
    show(
        rows,
        as_json,
        ("id", "what", "users", "sessions", "asked", "until", "state"),
        lambda a: (
            a.id,
            what(a),
            "-" if a.tenants is None else str(a.tenants),
            "-" if a.sessions is None else str(a.sessions),
            moment(a.asked_at),
            moment(a.expires_at),
            state(a),
        ),
    )


def refuse(
    approval_id: Annotated[str, typer.Argument(metavar="ID", help="The request's id.")],
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a request for a second person's word, or take one's own back.

    Example: kvrun remote refuse apr-7c0ffee1
    """
    with connect(api_url, api_key_file) as client:
        done = client.approvals.refuse(the_workspace(client, workspace).id, approval_id)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"approval {done.id} is refused: nothing is erased")


def _show_erased(done: Erased, opening: Path | None) -> None:
    place = write_opening(done.opening, opening or Path(f"{done.id}.opening.json"))
    out = console()
    out.print(f"{done.sessions} session key(s) destroyed")
    for name in done.unacknowledged:
        out.print(Text.assemble(("not confirmed:", "yellow"), f" {name}"))
    typer.echo(f"certificate: {done.id} (kvrun remote certificate DEPLOYMENT {done.id})")
    typer.echo(f"opening, kept nowhere else: {place}")


def _show_progress(client: Client, deployment_id: str, erasure_id: str, as_json: bool) -> None:
    found = client.erasures.get(deployment_id, erasure_id)
    if as_json:
        print_json(found)
    else:
        rows = table("what", "value")
        for name, value in (
            ("id", found.id),
            ("state", found.state),
            ("reference", found.reference),
            ("certificates", "\n".join(found.certificates)),
            ("not confirmed", "\n".join(found.unacknowledged)),
            *((step.name, step.at) for step in found.steps),
        ):
            rows.add_row(name, value)
        console().print(rows)
    raise typer.Exit(0 if found.state == "certified" else 1)
