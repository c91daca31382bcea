"""``kvrun cache``: keep a session's context warm."""

from typing import Annotated

import msgspec
import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, console, print_json, read_config
from kvrun.config.values import size_text
from kvrun.instance.pinning import Kept
from kvrun.launch.admin import ask_daemon

app = typer.Typer(no_args_is_help=True)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The id, as in X-KV-Tenant.")]
SessionId = Annotated[str, typer.Option("--session", help="The session, as in X-KV-Session.")]


@app.callback()
def cache() -> None:
    """Keep sessions warm."""


@app.command()
def pin(
    tenant: TenantId,
    session: SessionId = "default",
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Keep what a session holds now from eviction: its first blocks, within its tenant's quota.

    It lasts until `kvrun cache unpin`, an erasure or the daemon's end; a time to live still holds.

    Example: kvrun cache pin alice --session notes
    """
    _ask("pin", "kept", tenant, session, config_file, as_json)


@app.command()
def unpin(
    tenant: TenantId,
    session: SessionId = "default",
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Let a session's blocks be evicted again.

    Example: kvrun cache unpin alice --session notes
    """
    _ask("unpin", "let go", tenant, session, config_file, as_json)


def _ask(
    operation: str, what: str, tenant: str, session: str, config_file: ConfigFile, as_json: bool
) -> None:
    arguments = {"tenant": tenant, "session": session}
    answer = ask_daemon(read_config(config_file), operation, arguments)
    kept = msgspec.json.decode(answer, type=Kept)
    if as_json:
        print_json(kept)
    else:
        console().print(f"{kept.blocks} blocks {what}, {size_text(kept.bytes)}")
