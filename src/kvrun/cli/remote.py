"""What commands that ask a control plane share: its address and key, and finding by name."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from kvrun.cli.login_file import kept_logins
from kvrun.cli.options import console, print_json, table
from kvrun.client import AddressError, Client, NotFoundError
from kvrun.client.address import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from kvrun.client.errors import BadIdError, ClientError
from kvrun.client.results.deployments import Deployment
from kvrun.client.results.people import Workspace
from kvrun.durable import replace_private_file, write_private_file
from kvrun.errors import KvrunError

T = TypeVar("T")
_MOST_KEY_BYTES = 4096

ApiUrl = Annotated[
    str,
    typer.Option("--api-url", envvar=URL_VARIABLE, help="The control plane's address."),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", help=f"File with the API key; {KEY_VARIABLE} holds it otherwise."
    ),
]
InWorkspace = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        envvar="KVRUN_WORKSPACE",
        help="Its id or name; needed where there are several.",
    ),
]
Named = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id or name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DEFAULT_API_URL = DEFAULT_URL


class NotNamedError(KvrunError):
    """What was named is not there, or is not the only one of that name."""

    exit_code = 2
    status = 404


def save(path: Path, data: bytes, *, new: bool = False) -> None:
    """Write what a control plane gave, for nobody else to read; ``new``: only where there is no
    file yet. A link or a device in its place is left alone. Raises ClientError."""
    try:
        if not new and (path.is_symlink() or (path.exists() and not path.is_file())):
            raise ClientError(f"{path} is a link or no plain file", hint="Name another file.")
        (write_private_file if new else replace_private_file)(path, data)
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {error.strerror}") from None


def connect(api_url: str, key_file: Path | None) -> Client:
    """A client for the control plane: with the key of the file or the environment, else with the
    person's login there. Raises KvrunError without one that can be used."""
    key = read_key(key_file)
    if key is None and not os.environ.get(KEY_VARIABLE):
        kept = kept_logins().get(api_url.rstrip("/"))
        key = kept.token if kept is not None else None
    return Client(api_url, key)


def read_key(file: Path | None) -> str | None:
    """The API key in a file that nobody else may read. Raises AddressError."""
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if found.st_mode & 0o077:
                raise AddressError(
                    f"the file {file} with the API key may be read by others",
                    hint=f"Run: chmod 600 {file}",
                )
            return opened.read(_MOST_KEY_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AddressError(f"the API key cannot be read from {file}: {error}") from None


def the_workspace(client: Client, given: str) -> Workspace:
    """The workspace with this id or name; the caller's only one where nothing was given.

    Raises NotNamedError.
    """
    found = [item for item in client.workspaces.list() if item.deleted_at is None]
    if given:
        found = [item for item in found if given in (item.id, item.name)]
    if len(found) == 1:
        return found[0]
    raise NotNamedError(
        f"no workspace of yours is called {given!r}"
        if given
        else f"you are in {len(found)} workspaces",
        hint="Name one with --workspace: `kvrun workspaces list` shows yours.",
    )


def the_deployment(client: Client, given: str, workspace: str = "") -> Deployment:
    """The deployment with this id, else the one of this name. Raises NotNamedError."""
    try:
        return client.deployments.get(given)
    except (BadIdError, NotFoundError):
        pass
    wanted = [the_workspace(client, workspace)] if workspace else list(client.workspaces.list())
    found = [
        item
        for place in wanted
        if place.deleted_at is None
        for item in client.deployments.list(place.id)
        if item.spec.name == given
    ]
    if len(found) == 1:
        return found[0]
    raise NotNamedError(
        f"{len(found) or 'no'} deployments are called {given!r}",
        hint="Give its id: `kvrun deployments list` shows them.",
    )


def show(
    rows: Iterable[T],
    as_json: bool,
    columns: tuple[str, ...],
    cells: Callable[[T], tuple[str, ...]],
) -> None:
    """Print a list as JSON or as a table."""
    listed = list(rows)
    if as_json:
        print_json(listed)
        return
    if not listed:
        console().print("none")
        return
    shown = table(*columns)
    for row in listed:
        shown.add_row(*cells(row))
    console().print(shown)


def moment(at: float | None) -> str:
    """A time for people; UTC."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def confirm(question: str, yes: bool) -> None:
    """Ask before what cannot be taken back; without a terminal only ``--yes`` goes on."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotNamedError(f"{question} Nothing was done.", hint="Say --yes.")
    if not typer.confirm(question):
        raise typer.Exit(1)
