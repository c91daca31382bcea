"""``kvrun users``: end users of a control plane's deployments, and where their data is."""

from typing import Annotated

import typer

from kvrun.cli.options import AsJson
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
from kvrun.config.values import size_text

app = typer.Typer(no_args_is_help=True)
Reason = Annotated[
    str, typer.Option(help="Why the ids are wanted; it is put on record, and ids are shown.")
]


@app.callback()
def users() -> None:
    """Find end users of a control plane's deployments by pseudonym, or by id for a reason."""


@app.command("list")
def list_users(
    deployment: Named,
    search: Annotated[str, typer.Option(help="An id, or a reference's beginning.")] = "",
    reason: Reason = "",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a deployment's end users, the last used first.

    Example: kvrun users list chat --reason "ticket 4711"
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        rows = list(client.users.list(found.id, query=search, reason=reason))
    show(
        rows,
        as_json,
        ("reference", "id", "sessions", "size", "last used", "expires"),
        lambda u: (
            u.tenant_ref,
            u.tenant or "-",
            str(u.sessions),
            size_text(u.size_bytes),
            moment(u.last_used_at),
            moment(u.expires_at),
        ),
    )


@app.command()
def sessions(
    deployment: Named,
    user: Annotated[str, typer.Argument(metavar="USER", help="The id or the reference.")],
    reason: Reason = "",
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show an end user's sessions.

    Example: kvrun users sessions chat alice --reason "ticket 4711"
    """
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        rows = list(client.users.sessions(found.id, user, reason=reason))
    show(
        rows,
        as_json,
        ("reference", "id", "memory", "disk", "last used", "expires"),
        lambda s: (
            s.session_ref,
            s.session or "-",
            size_text(s.memory_bytes),
            size_text(s.disk_bytes),
            moment(s.last_used_at),
            moment(s.expires_at),
        ),
    )


@app.command("where-is")
def where_is(
    user: Annotated[str, typer.Argument(metavar="USER", help="The id, as in X-KV-Tenant.")],
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where a person's data is, in every deployment of a workspace, stopped ones included.

    Ends with status 1 where a deployment cannot tell.

    Example: kvrun users where-is alice --workspace acme
    """
    with connect(api_url, api_key_file) as client:
        rows = list(client.users.where_is(the_workspace(client, workspace).id, user))
    show(
        rows,
        as_json,
        ("deployment", "found", "sessions", "held", "region", "expires", "cannot tell"),
        lambda p: (
            p.deployment.spec.name,
            "yes" if p.found else "no",
            str(p.sessions),
            ", ".join(f"{tier} {size_text(size)}" for tier, size in sorted(p.tiers.items())),
            p.region or "-",
            moment(p.expires_at),
            p.unknown,
        ),
    )
    if any(row.unknown for row in rows):
        raise typer.Exit(1)
