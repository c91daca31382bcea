"""``kvrun workspaces`` and ``kvrun members``: who works with a control plane."""

from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    NotNamedError,
    Yes,
    confirm,
    connect,
    moment,
    show,
    the_workspace,
)
from kvrun.client import Client
from kvrun.client.results.people import Member

app = typer.Typer(no_args_is_help=True)
members_app = typer.Typer(no_args_is_help=True)
Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The member's e-mail address.")]
Role = Annotated[str, typer.Option(help="owner, admin, developer, privacy or auditor.")]


@app.callback()
def workspaces() -> None:
    """List, make and delete workspaces of a control plane."""


@app.command("list")
def list_workspaces(
    api_url: ApiUrl = DEFAULT_API_URL, api_key_file: ApiKeyFile = None, as_json: AsJson = False
) -> None:
    """Show your workspaces, and your role in each.

    Example: kvrun workspaces list --json
    """
    with connect(api_url, api_key_file) as client:
        found = list(client.workspaces.list())
    show(
        found,
        as_json,
        ("id", "name", "role", "made", "deleted"),
        lambda w: (w.id, w.name, w.role or "-", moment(w.created_at), moment(w.deleted_at)),
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; it never changes.")],
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a workspace, which you then own.

    Example: kvrun workspaces create acme
    """
    with connect(api_url, api_key_file) as client:
        made = client.workspaces.create(name)
    if as_json:
        print_json(made)
    else:
        console().print(f"workspace {made.name} ({made.id})")


@app.command()
def delete(
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="Its id or name.")],
    yes: Yes = False,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a workspace. Its deployments have to be deleted first, each with its certificate.

    Example: kvrun workspaces delete acme --yes
    """
    with connect(api_url, api_key_file) as client:
        found = the_workspace(client, workspace)
        confirm(f"Delete the workspace {found.name} ({found.id})?", yes)
        done = client.workspaces.delete(found.id)
    if as_json:
        print_json(done)
    else:
        console().print(f"workspace {done.name} is deleted; its logs are kept")


@members_app.callback()
def members() -> None:
    """List and change the members of a workspace."""


@members_app.command("list")
def list_members(
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show everybody with a role in a workspace.

    Example: kvrun members list --workspace acme
    """
    with connect(api_url, api_key_file) as client:
        found = list(client.members.list(the_workspace(client, workspace).id))
    show(
        found,
        as_json,
        ("e-mail", "name", "role", "from a group", "last sign-in"),
        lambda m: (
            m.email,
            m.name,
            m.role,
            "yes" if m.from_group else "no",
            moment(m.last_sign_in_at),
        ),
    )


@members_app.command()
def add(
    email: Email,
    role: Role,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Let somebody into a workspace, from their first sign-in on.

    Example: kvrun members add ada@example.com --role privacy
    """
    with connect(api_url, api_key_file) as client:
        _print(client.members.add(the_workspace(client, workspace).id, email, role), as_json)


@members_app.command("set-role")
def set_role(
    email: Email,
    role: Role,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give a member another role; it counts from their next request on.

    Example: kvrun members set-role ada@example.com --role auditor
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        found = _member(client, place, email)
        _print(client.members.set_role(place, found.user_id, role), as_json)


@members_app.command()
def remove(
    email: Email,
    yes: Yes = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Remove a member from a workspace; their API keys of it are revoked.

    Example: kvrun members remove ada@example.com --yes
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        found = _member(client, place, email)
        confirm(f"Remove {found.email} and revoke their API keys?", yes)
        client.members.remove(place, found.user_id)
    console().print(f"{found.email} is no member any more")


def _member(client: Client, workspace_id: str, email: str) -> Member:
    wanted = email.casefold()
    for item in client.members.list(workspace_id):
        if item.email.casefold() == wanted:
            return item
    raise NotNamedError(
        f"no member has the e-mail address {email!r}", hint="`kvrun members list` shows them."
    )


def _print(found: Member, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(f"{found.email}: {found.role}")
