"""``kvrun policy violations``: what the policy did not allow, and what is misplaced."""

import time
from typing import Annotated

import typer

from kvrun.audit.cursor import read_records
from kvrun.audit.record import format_time
from kvrun.cli.audit_folder import LogFolder, read_log
from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, console, print_json, read_config
from kvrun.cli.options import table as new_table
from kvrun.cli.policy_source import seconds_of
from kvrun.config.values import size_text
from kvrun.policy.recorded import violated


def violations(
    since: Annotated[str, typer.Option(help="How far back: 24h, 7d.")] = "24h",
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show whose blocks the policy refused, by pseudonym, with policy and reason, and which are
    where they may not be now.

    Where a policy only warns, what it would have refused is done and stays: it is shown as warned,
    and as misplaced while it is there.

    Example: kvrun policy violations --since 7d
    """
    config = read_config(config_file)
    now = time.time()
    log = read_log(folder, config_file, "policy violations")
    found = violated(config, read_records(log), now - seconds_of(since), now)
    if as_json:
        print_json(found)
        return
    out = console()
    rows = new_table(
        "what", "tenant", "tier", "times", "blocks", "size", "policy", "because", "last"
    )
    for entry in found.entries:
        rows.add_row(
            entry.kind.value.replace("_", " "),
            entry.tenant_ref[:10],
            f"{entry.tier} {entry.region}".strip(),
            str(entry.times),
            str(entry.blocks or "-"),
            size_text(entry.size_bytes) if entry.size_bytes else "-",
            f"{entry.rule} {entry.where}".strip() or "-",
            f"{entry.why.replace('_', ' ')}. {entry.reason}".strip(". "),
            f"{format_time(entry.at)[:16]}Z" if entry.at else "now",
        )
    out.print(rows if found.entries else "nothing was refused, and nothing is misplaced")
    if found.unrecorded:
        out.print(f"{found.unrecorded} more refusals have no record of their own")
    if found.more:
        out.print(f"{found.more} more kinds are not shown")
