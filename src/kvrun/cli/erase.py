"""``kvrun erase``: destroy the keys of a session or a tenant, and with them its cache."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.instance.instance import ErasedSession
from kvrun.launch.admin import ask_daemon

app = typer.Typer(no_args_is_help=True)

Tenant = Annotated[str, typer.Option(help="The tenant's id, as in X-KV-Tenant.")]


@app.callback()
def erase() -> None:
    """Destroy keys, so that what they sealed can never be opened again."""


@app.command()
def session(
    tenant: Tenant = "default",
    session: Annotated[str, typer.Option(help="The session's id, as in X-KV-Session.")] = "default",
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase one session: its key is destroyed, its blocks are dropped from every tier.

    The same text sent again starts cold under a new key.

    Example: kvrun erase session --tenant alice --session chat-7
    """
    arguments = {"tenant": tenant, "session": session}
    _erase(config_file, "erase_session", arguments, as_json)


@app.command()
def tenant(
    tenant: Tenant,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Erase every session of a tenant.

    Example: kvrun erase tenant --tenant alice
    """
    arguments = {"tenant": tenant}
    _erase(config_file, "erase_tenant", arguments, as_json)


def _erase(config_file: Path, operation: str, asked: dict[str, str], as_json: bool) -> None:
    answer = ask_daemon(read_config(config_file), operation, asked)
    erased = msgspec.json.decode(answer, type=list[ErasedSession])
    if as_json:
        print_json({"asked": asked, "erased": erased})
        return
    out = console()
    if not erased:
        out.print("nothing to erase: no key exists for " + ", ".join(asked.values()), markup=False)
        return
    rows = table("session (reference in the log)", "generation", "memory blocks", "disk blocks")
    for item in erased:
        rows.add_row(
            item.session_ref,
            str(item.generation),
            str(item.memory_blocks),
            str(item.disk_blocks),
        )
    out.print(rows)
    out.print(f"{len(erased)} session key(s) destroyed")
