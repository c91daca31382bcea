"""``kvrun erase requests|approve|refuse``: the second person's word, by a person who logged in."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from kvrun.cli.login import Where
from kvrun.cli.login_file import the_address, the_login
from kvrun.cli.options import AsJson, print_json
from kvrun.cli.remote import (
    NotNamedError,
    Yes,
    confirm,
    moment,
    show,
    the_workspace,
)
from kvrun.client import Client
from kvrun.client.address import origin
from kvrun.client.results.people import Approval, Workspace

_MAY_AGREE = "erase_wide"
InOne = Annotated[
    str,
    typer.Option("--workspace", "-w", envvar="KVRUN_WORKSPACE", help="Only here: its id or name."),
]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The request's id.")]


def requests(
    workspace: InOne = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Those that are decided or too old, too.")
    ] = False,
    url: Where = "",
    as_json: AsJson = False,
) -> None:
    """Show what waits for a second person's word, in every workspace where you may agree.

    Example: kvrun erase requests
    """
    with _as_a_person(url) as client:
        me = client.me().id
        found = [item for _, item in _found(client, workspace) if everything or _waits(item)]
        names = {item.id: item.name for item in client.workspaces.list()}
    show(
        found,
        as_json,
        ("id", "workspace", "what", "users", "sessions", "asked by", "until", "state"),
        lambda a: (
            a.id,
            names.get(a.workspace_id, a.workspace_id),
            what(a),
            "-" if a.tenants is None else str(a.tenants),
            "-" if a.sessions is None else str(a.sessions),
            "you" if a.asked_by == me else a.asked_by,
            moment(a.expires_at),
            state(a),
        ),
    )


def approve(
    approval_id: ApprovalId,
    yes: Yes = False,
    workspace: InOne = "",
    url: Where = "",
    as_json: AsJson = False,
) -> None:
    """Agree, as the second person, to an erasure that somebody else asked for: `kvrun login` first.

    Example: kvrun erase approve apr-7c0ffee1
    """
    with _as_a_person(url) as client:
        place, asked = _the_request(client, approval_id, workspace)
        reach = f": {asked.tenants} users, {asked.sessions} sessions" if asked.tenants else ""
        confirm(f"Agree to {what(asked)} in {place.name}{reach}?", yes)
        done = client.approvals.approve(place.id, asked.id)
    if as_json:
        print_json(done)
    else:
        typer.echo(
            f"you agreed to {done.id}: whoever asked can erase until {moment(done.expires_at)}"
        )


def refuse(
    approval_id: ApprovalId,
    reason: Annotated[str, typer.Option(help="One line for whoever asked; no end user's id.")] = "",
    workspace: InOne = "",
    url: Where = "",
    as_json: AsJson = False,
) -> None:
    """Refuse such a request, or take your own back: nothing is erased.

    Example: kvrun erase refuse apr-7c0ffee1 --reason "ask the customer first"
    """
    with _as_a_person(url) as client:
        place, asked = _the_request(client, approval_id, workspace)
        done = client.approvals.refuse(place.id, asked.id, reason=reason)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done.id} is refused: nothing is erased")


def what(item: Approval) -> str:
    """What is to be erased, in a few words."""
    return f"{item.operation.replace('_', ' ')} {item.subject or item.deployment_id or ''}".strip()


def state(item: Approval) -> str:
    """What became of a request."""
    if item.taken_at is not None:
        return "used"
    if item.agreed is None:
        return "waits" if _waits(item) else "too old"
    refused = f"refused: {item.reason}" if item.reason else "refused"
    return "agreed" if item.agreed else refused


def _as_a_person(url: str) -> Client:
    """A client with the person's login; an API key does not count. Raises NotLoggedInError."""
    place = origin(the_address(url)).url
    return Client(place, the_login(place).token)


def _waits(item: Approval) -> bool:
    return item.agreed is None and item.expires_at > time.time()


def _found(client: Client, workspace: str) -> Iterator[tuple[Workspace, Approval]]:
    """The requests of the named workspace, or of all in which the person may agree."""
    places = [the_workspace(client, workspace)] if workspace else list(client.workspaces.list())
    for place in places:
        if place.deleted_at is None and (workspace or _MAY_AGREE in place.permissions):
            for item in client.approvals.list(place.id):
                yield place, item


def _the_request(client: Client, approval_id: str, workspace: str) -> tuple[Workspace, Approval]:
    for place, item in _found(client, workspace):
        if item.id == approval_id:
            return place, item
    raise NotNamedError(
        f"no request {approval_id!r} is in a workspace where you may agree",
        hint="kvrun erase requests --all",
    )
