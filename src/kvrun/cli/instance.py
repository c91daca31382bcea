"""``kvrun instance``: run the daemon, or close the log of a machine that is lost."""

import os
from typing import Annotated

import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, read_config
from kvrun.launch.children import run_instance

app = typer.Typer(invoke_without_command=True)


@app.callback()
def instance(context: typer.Context, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the instance daemon alone: keys, sealed blocks and the audit log of one deployment.

    Started by `kvrun up`, it gets its launch tokens through a descriptor. Alone, it keeps them in
    DATA_DIR/run (0600), where `kvrun gateway` and an engine on the same machine find them.

    Example: kvrun instance --config /etc/kvrun/kvrun.toml
    """
    if context.invoked_subcommand is None:
        run_instance(config_file, os.environ)


@app.command()
def retire(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The id of the lost machine's log.")],
    reason: Annotated[str, typer.Option(help="What happened; it is signed and put on record.")],
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Close the log of a machine that will not come back. It cannot be undone.

    The last collected size and root are signed, with the interval of which nothing is known, and
    nothing more of that log is collected. What was collected stays.

    Example: kvrun instance retire default/default/host-7 --reason "the disk is lost"
    """
    from kvrun.cli import control

    control.retire(read_config(config_file), log, reason, as_json=as_json)
