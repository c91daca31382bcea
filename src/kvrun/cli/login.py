"""``kvrun login``, ``logout`` and ``logins``: a person acts from a terminal as themselves."""

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from kvrun.cli.login_file import KeptLogin, keep_login, the_address, the_login
from kvrun.cli.login_listener import LoginListener
from kvrun.cli.options import AsJson, print_json
from kvrun.cli.remote import moment, show
from kvrun.client import Client, NotSignedInError
from kvrun.client.address import URL_VARIABLE, origin
from kvrun.client.errors import ClientError
from kvrun.client.login import begin_login, finish_login

Where = Annotated[
    str,
    typer.Option(
        "--url",
        "--api-url",
        envvar=URL_VARIABLE,
        help="The control plane's address; otherwise the one at which somebody is logged in.",
    ),
]
_WAIT_S = 300
"""As long as a code works."""


def login(
    url: Where = "",
    hours: Annotated[int, typer.Option(min=1, max=8, help="For how long.")] = 1,
    no_browser: Annotated[
        bool,
        typer.Option(
            "--no-browser",
            help="Open nothing and listen on no port: allow it in any browser, paste the code.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Act from this command line as yourself, for hours, once you allow it in the console.

    Opens the console's page, where you are signed in. The login is kept in a file of mode 0600, has
    your roles at each moment, and takes the place of an API key where none is set. Signing out in
    that browser ends it.

    Example: kvrun login --url https://kvrun.example.com
    """
    place = origin(the_address(url)).url
    if no_browser:
        begun = begin_login(place, hours=hours)
        typer.echo(f"Open this page, allow it, and paste the code:\n  {begun.page}", err=True)
        code, verifier = typer.prompt("Code", err=True), begun.verifier
    else:
        code, verifier = _through_a_browser(place, hours)
    made = finish_login(place, code, verifier)
    keep_login(place, KeptLogin(token=made.token, name=made.name, expires_at=made.expires_at))
    if as_json:
        print_json({"url": place, "name": made.name, "expires_at": made.expires_at})
    else:
        typer.echo(f"logged in at {place} as {made.name} until {moment(made.expires_at)} UTC")


def logout(
    login_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Another of your logins: `kvrun logins`.")
    ] = "",
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="In your browsers and other command lines too.")
    ] = False,
    url: Where = "",
) -> None:
    """End your login on this command line, or another one of yours.

    Example: kvrun logout
    """
    place = origin(the_address(url)).url
    with Client(place, the_login(place).token) as client:
        if login_id:
            client.logins.end(login_id)
            typer.echo(f"the login {login_id} has ended")
            return
        with suppress(NotSignedInError):  # it had ended before
            client.sign_out(everywhere=everywhere)
        keep_login(place, None)
    typer.echo(f"logged out at {place}")


def logins(url: Where = "", as_json: AsJson = False) -> None:
    """Show the command lines on which you are logged in.

    Example: kvrun logins
    """
    place = origin(the_address(url)).url
    with Client(place, the_login(place).token) as client:
        rows = list(client.logins.list())
    show(
        rows,
        as_json,
        ("id", "since", "last used", "until"),
        lambda item: (
            item.id,
            moment(item.created_at),
            moment(item.seen_at),
            moment(item.expires_at),
        ),
    )


def _through_a_browser(place: str, hours: int) -> tuple[str, str]:
    """The code that the browser brings to a port of this machine, and its verifier."""
    try:
        listener = LoginListener()
    except OSError as error:
        raise ClientError(
            f"no port of 127.0.0.1 can be listened on: {error.strerror}",
            hint="Run: kvrun login --no-browser",
        ) from None
    with listener:
        begun = begin_login(place, redirect_uri=listener.url, hours=hours)
        typer.echo(f"Allow it in your browser, on this page:\n  {begun.page}", err=True)
        webbrowser.open(begun.page)
        return listener.wait(begun.state, _WAIT_S), begun.verifier
