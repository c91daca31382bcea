"""``kvrun bench``: measure this machine and print each value with its goal."""

from typing import Annotated

import typer
from rich.console import Console

from kvrun.bench.paired import MIN_PAIRS
from kvrun.bench.report import Report, print_report
from kvrun.bench.seal import SealBenchSettings, run_seal_bench

app = typer.Typer(no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.callback()
def bench() -> None:
    """Measure this machine and print each value with its goal."""


@app.command()
def seal(
    as_json: AsJson = False,
    block_kib: Annotated[int, typer.Option(min=4, max=65_536, help="Block size in KiB.")] = 1024,
    pairs: Annotated[int, typer.Option(min=MIN_PAIRS, max=1000, help="Rounds to compare.")] = 21,
) -> None:
    """Seal and open blocks against raw AES-256-GCM, and two threads against one.

    Takes a few seconds and 256 MiB of memory. Ends with status 1 when a goal was missed; a
    comparison that the machine's noise makes meaningless is reported without a verdict.

    Example: kvrun bench seal --json
    """
    finish(run_seal_bench(SealBenchSettings(block_bytes=block_kib << 10, pairs=pairs)), as_json)


def finish(report: Report, as_json: bool) -> None:
    """Print a report and end the command: status 1 when one of its goals was missed."""
    print_report(report, Console(), as_json=as_json)
    raise typer.Exit(1 if report.missed else 0)
