"""``kvrun deployments attach-token|attach|detach``: what somebody else runs."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, console, print_json
from kvrun.cli.remote import (
    DEFAULT_API_URL,
    ApiKeyFile,
    ApiUrl,
    InWorkspace,
    Named,
    NotNamedError,
    connect,
    the_deployment,
    the_workspace,
)
from kvrun.client import Client


def attach_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="How it is to be called here.")],
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a token with which somebody registers what they run. It works once, for an hour.

    Example: kvrun deployments attach-token their-vllm
    """
    with connect(api_url, api_key_file) as client:
        made = client.deployments.attach_token(the_workspace(client, workspace).id, name)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{made.token}\n\nOn the machine of the control plane, beside its kvrun.toml:")
        typer.echo("kvrun deployments attach --config kvrun.toml, which asks for the token.")


def attach(
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; it is asked for otherwise.")
    ] = None,
    config_file: Annotated[
        Path, typer.Option("--config", "-c", help="The kvrun.toml of what you run.")
    ] = DEFAULT_CONFIG,
    api_url: ApiUrl = DEFAULT_API_URL,
    as_json: AsJson = False,
) -> None:
    """Register an engine and daemon that you run at the control plane of this machine.

    The token is all it needs. The control plane then shows it, collects its log and erases in it;
    it never starts or stops it.

    Example: kvrun deployments attach --config /srv/vllm/kvrun.toml
    """
    token = _token(token_file)
    # No API key is needed; a client wants one, and nobody looks at it there.
    with Client(api_url, token) as client:
        made = client.deployments.attach(token, str(config_file.absolute()))
    if as_json:
        print_json(made)
    else:
        console().print(f"{made.spec.name} ({made.id}) is attached: {made.state}")


def detach(
    deployment: Named,
    workspace: InWorkspace = "",
    api_url: ApiUrl = DEFAULT_API_URL,
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget a deployment that somebody else runs; its keys and data stay with them.

    Example: kvrun deployments detach their-vllm
    """
    with connect(api_url, api_key_file) as client:
        done = client.deployments.detach(the_deployment(client, deployment, workspace).id)
    if as_json:
        print_json(done)
    else:
        console().print(f"{done.spec.name} ({done.id}) is forgotten here")


def _token(file: Path | None) -> str:
    """Not an argument: others on this machine see those."""
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotNamedError(f"the token cannot be read from {file}: {error}") from None
    if sys.stdin.isatty():
        return getpass.getpass("token: ").strip()
    return sys.stdin.readline().strip()
