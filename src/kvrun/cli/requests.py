"""``kvrun requests``: what single requests reused."""

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
from kvrun.instance.handles import Reuse
from kvrun.launch.admin import ask_daemon

app = typer.Typer(no_args_is_help=True)

_ROWS = (
    ("prompt tokens", "prompt_tokens"),
    ("reused from engine memory", "engine_tokens"),
    ("reused from the memory tier", "memory_tokens"),
    ("reused from the disk tier", "disk_tokens"),
    ("reused from Storage", "object_tokens"),
    ("blocks sealed", "sealed_blocks"),
    ("blocks that did not open", "failed_blocks"),
)


@app.callback()
def requests() -> None:
    """Look at single requests."""


@app.command()
def show(
    request_id: Annotated[str, typer.Argument(help="The id in the header X-KV-Request-Id.")],
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show how many tokens a request reused, and from which tier.

    Example: kvrun requests show 3f2a9c0d5e7b41d8
    """
    answer = ask_daemon(read_config(config_file), "request", {"request_id": request_id})
    reuse = msgspec.json.decode(answer, type=Reuse)
    if as_json:
        print_json(reuse)
        return
    rows = table("what", "count")
    for label, key in _ROWS:
        rows.add_row(label, str(getattr(reuse, key)))
    if reuse.denied:
        rows.add_row("refused by the daemon", reuse.denied)
    console().print(rows)
