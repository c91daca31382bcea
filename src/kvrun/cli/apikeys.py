"""``kvrun apikeys``: API keys of a control plane."""

import time
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    connect,
    moment,
    show,
    the_deployment,
    the_workspace,
)
from kvrun.cli.service_accounts import the_service_account
from kvrun.client.results.people import ApiKey, NewApiKey

app = typer.Typer(no_args_is_help=True)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]
_DAY_S = 86_400


@app.callback()
def apikeys() -> None:
    """Make, replace and revoke API keys of a control plane.

    Keys of one deployment without a control plane are in `kvrun keys`.
    """


@app.command("list")
def list_api_keys(
    workspace: InWorkspace = "",
    inactive: Annotated[bool, typer.Option("--inactive", help="Ended ones too.")] = False,
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a workspace's API keys; never a secret.

    Example: kvrun apikeys list --inactive
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        found = list(client.api_keys.list(place, inactive=inactive))
    show(
        found,
        as_json,
        ("id", "name", "scopes", "deployment", "state", "last used", "until"),
        lambda k: (
            k.id,
            k.name,
            " ".join(k.scopes),
            k.deployment_id or "all",
            _state(k),
            moment(k.last_used_at),
            moment(k.expires_at),
        ),
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    scope: Annotated[
        list[str], typer.Option(help="infer, erase, audit.read, evidence or admin. Repeatable.")
    ],
    deployment: Annotated[str, typer.Option(help="Only for this one: its id or name.")] = "",
    service_account: Annotated[
        str, typer.Option(help="Held by this service account, not by you: its id or name.")
    ] = "",
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.")] = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print its secret, this once.

    Example: kvrun apikeys create website --scope infer --deployment chat --days 365
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        bound = the_deployment(client, deployment, workspace).id if deployment else None
        holder = the_service_account(client, place, service_account) if service_account else None
        made = client.api_keys.create(
            place,
            name,
            scope,
            deployment_id=bound,
            expires_at=int(time.time()) + days * _DAY_S if days else None,
            service_account_id=holder.id if holder else None,
        )
    _print(made, as_json)


@app.command()
def rotate(
    key_id: KeyId,
    overlap_s: Annotated[
        int | None,
        typer.Option("--overlap", min=0, metavar="SECONDS", help="How long the old one goes on."),
    ] = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key's successor, with the same name and scopes; the old one ends after 7 days.

    Example: kvrun apikeys rotate 7c0ffee1 --overlap 3600
    """
    with connect(api_url, api_key_file) as client:
        place = the_workspace(client, workspace).id
        _print(client.api_keys.rotate(place, key_id, overlap_s=overlap_s), as_json)


@app.command()
def revoke(
    key_id: KeyId,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """End an API key at once.

    Example: kvrun apikeys revoke 7c0ffee1
    """
    with connect(api_url, api_key_file) as client:
        done = client.api_keys.revoke(the_workspace(client, workspace).id, key_id)
    if as_json:
        print_json(done)
    else:
        console().print(f"API key {done.id} ({done.name}): {_state(done)}")


def _state(key: ApiKey) -> str:
    if key.active:
        return "active"
    return "expired" if key.revoked_at is None else "revoked"


def _print(made: NewApiKey, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    out = console()
    out.print(f"API key {made.key.id} ({made.key.name})")
    out.print(f"\n{made.secret}\n\nIt is shown this once.")
