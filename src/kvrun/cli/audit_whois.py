"""``kvrun audit whois``: whom a tenant reference of the log stands for, while anybody can tell."""

from typing import Annotated

import msgspec
import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, print_json, read_config
from kvrun.instance.auditing import Identified
from kvrun.launch.admin import ask_daemon


def whois(
    tenant_ref: Annotated[str, typer.Argument(help="The tenant_ref of a record.")],
    reason: Annotated[
        str, typer.Option("--reason", help="Why you ask; it is written into the log.")
    ],
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Ask the running daemon which tenant a reference stands for.

    The question is a record of its own, written before the answer. Once the tenant is erased or
    expired its key is gone, nobody can tell any more, and this ends with status 1.

    Example: kvrun audit whois 5f1d0c6f7a2b4e3c9d8e7f6a5b4c3d2e --reason "ticket 4711"
    """
    asked = {"tenant_ref": tenant_ref, "reason": reason}
    answer = ask_daemon(read_config(config_file), "whois", asked)
    found = msgspec.json.decode(answer, type=Identified)
    if as_json:
        print_json(found)
    else:
        typer.echo(found.tenant)
