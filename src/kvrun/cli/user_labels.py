"""``kvrun users label|import``: what is said of end users, one by one or as a list."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.deployment_options import labels_of
from kvrun.cli.options import AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    NotNamedError,
    connect,
    the_deployment,
)
from kvrun.client.results.deployments import TenantNote


def label(
    deployment: Named,
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="The user's reference: `kvrun users list`.")
    ],
    tenant_class: Annotated[str, typer.Option("--class", help="Such as gold.")] = "",
    region: Annotated[str, typer.Option(help="Where their data belongs.")] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="A label. Repeatable."),
    ] = None,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say class, region and labels of an end user, in place of what was said before.

    Example: kvrun users label chat 5f1d0c6f7a2b4e3c --label customer=acme --region eu-west-1
    """
    note = TenantNote(
        tenant_ref=reference,
        tenant_class=tenant_class,
        region=region,
        labels=labels_of(labels or []) or {},
    )
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        done = client.users.label(found.id, [note])
    if as_json:
        print_json(done)
    else:
        console().print(f"{done.count} user labelled")


def import_list(
    deployment: Named,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV; - reads standard input.")],
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say class, region and labels of many end users: all of the list is taken in, or nothing.

    The first line names the columns: tenant or tenant_ref, any of class, region and label:NAME. Ids
    are looked up in the deployment and not kept. Ends with status 1 where a line's user has no key.

    Example: kvrun users import chat users.csv
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotNamedError(f"the list cannot be read from {file}: {error}") from None
    with connect(api_url, api_key_file) as client:
        found = the_deployment(client, deployment, workspace)
        done = client.users.label_list(found.id, text)
    if as_json:
        print_json(done)
    else:
        out = console()
        out.print(f"{done.count} users labelled")
        if done.unknown_lines:
            lines = ", ".join(map(str, done.unknown_lines[:20]))
            out.print(f"left out, since nobody of that id has a key: lines {lines}")
    raise typer.Exit(1 if done.unknown_lines else 0)
