"""``kvrun service-accounts``: the programs that work with a workspace."""

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
from kvrun.client.results.people import ServiceAccount

app = typer.Typer(no_args_is_help=True)


@app.callback()
def service_accounts() -> None:
    """List, make and delete service accounts: identities of programs, which act by API key."""


@app.command("list")
def list_service_accounts(
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a workspace's service accounts, deleted ones included.

    Example: kvrun service-accounts list
    """
    with connect(api_url, api_key_file) as client:
        found = list(client.service_accounts.list(the_workspace(client, workspace).id))
    show(
        found,
        as_json,
        ("id", "name", "role", "made", "deleted"),
        lambda a: (a.id, a.name, a.role, moment(a.created_at), moment(a.deleted_at)),
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    role: Annotated[str, typer.Option(help="admin, developer, privacy or auditor.")],
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a service account; `kvrun apikeys create --service-account` makes a key for it.

    Example: kvrun service-accounts create ci --role developer
    """
    with connect(api_url, api_key_file) as client:
        made = client.service_accounts.create(the_workspace(client, workspace).id, name, role)
    if as_json:
        print_json(made)
    else:
        console().print(f"service account {made.name} ({made.id}): {made.role}")


@app.command()
def delete(
    name: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its id or name.")],
    yes: Yes = False,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Delete a service account; its API keys end at once.

    Example: kvrun service-accounts delete ci --yes
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        found = the_service_account(client, place, name)
        confirm(f"Delete {found.name} ({found.id}) and end its API keys?", yes)
        client.service_accounts.delete(place, found.id)
    console().print(f"{found.name} is deleted")


def the_service_account(client: Client, workspace_id: str, given: str) -> ServiceAccount:
    """The living service account with this id or name. Raises NotNamedError."""
    listed = client.service_accounts.list(workspace_id)
    living = [item for item in listed if item.deleted_at is None]
    found = [item for item in living if given in (item.id, item.name)]
    if len(found) == 1:
        return found[0]
    raise NotNamedError(
        f"{len(found) or 'no'} service accounts are called {given!r}",
        hint="`kvrun service-accounts list` shows them.",
    )
