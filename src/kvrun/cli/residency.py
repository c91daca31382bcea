"""``kvrun residency``: where context is, by region and tier."""

from typing import Annotated

import typer

from kvrun.audit.cursor import read_records
from kvrun.audit.export import parse_moment
from kvrun.cli.audit_folder import LogFolder, read_log
from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, console, print_json, table
from kvrun.cli.policy_source import config_or_default
from kvrun.config.values import size_text
from kvrun.policy.report import holdings
from kvrun.policy.setup import facts_of

app = typer.Typer(no_args_is_help=True)


@app.callback()
def residency() -> None:
    """Where users' context is."""


@app.command()
def report(
    at: Annotated[
        str, typer.Option("--at", help="Before this time (UTC), such as 2026-01-31T12:00.")
    ] = "",
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show bytes and users by region and tier, keys and log included, as the audit log says.

    The regions are those that the log has from before that time; where it has none, those of the
    configuration now. Plaintext in the engine's memory has no bytes in the log and is not shown.

    Example: kvrun residency report --at 2026-01-31T12:00
    """
    moment = parse_moment(at)
    config = config_or_default(config_file)
    log = read_log(folder, config_file, "residency report")
    found = holdings(read_records(log), facts_of(config), moment)
    if as_json:
        print_json({"at": moment or None, "holdings": found})
        return
    rows = table("region", "what", "users", "blocks, keys, records", "size")
    for holding in found:
        rows.add_row(
            holding.region or "(not said)",
            holding.tier,
            str(holding.users) if holding.tier != "log" else "-",
            str(holding.blocks),
            size_text(holding.size_bytes) if holding.tier != "keys" else "-",
        )
    console().print(rows)
    if not all(holding.recorded for holding in found):
        console().print("The regions are those of the configuration now: the log names none.")
