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


@app.command()
def ttft(
    as_json: AsJson = False,
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=1000, max=31_000, help="Prompt length; repeatable. Usual: 4k, 16k, 30k."),
    ] = None,
    model: Annotated[
        str, typer.Option(help='Folder, "demo" or "tiny"; all stacks serve it.')
    ] = "tiny",
    dtype: Annotated[
        str, typer.Option(help="Number format; CPUs without bfloat16 compute it slowly.")
    ] = "bfloat16",
    rounds: Annotated[
        int | None,
        typer.Option(min=7, max=1000, help="Rounds a length; unset: 15 below 8k tokens, else 7."),
    ] = None,
) -> None:
    """Time to first token with the governed cache against plain vLLM, and reload against cold.

    Starts three engines; on two cores it takes 12 GiB of memory, 10 minutes at 4,000 tokens and 15
    at 16,000. Leave the machine alone meanwhile.

    Example: kvrun bench ttft --tokens 4000 --json
    """
    from kvrun.bench.ttft import DEFAULT_TOKENS, TtftSettings, run_ttft_bench

    status = Console(stderr=True).status("starting")
    with status:
        report = run_ttft_bench(
            TtftSettings(tuple(tokens or DEFAULT_TOKENS), model=model, dtype=dtype, rounds=rounds),
            status.update,
        )
    finish(report, as_json)


@app.command()
def gateway(as_json: AsJson = False) -> None:
    """What the gateway adds to the first byte and costs at 128 streams, beside nginx.

    Needs gcc, and nginx for the comparison; takes about two minutes.

    Example: kvrun bench gateway --json
    """
    from kvrun.bench.gateway import run_gateway_bench

    finish(run_gateway_bench(), as_json)


@app.command()
def audit(
    as_json: AsJson = False,
    records: Annotated[
        int, typer.Option(min=1000, max=100_000_000, help="Records to append, verify and collect.")
    ] = 100_000,
    ttft_ms: Annotated[
        float | None,
        typer.Option(min=0.1, help="The engine's cold TTFT at 4,000 tokens, to compare with."),
    ] = None,
) -> None:
    """Records appended durably, verified and collected a second, and a request's share.

    Takes about ten seconds on the disk of the temporary folder; 10 million records take 6 GB there
    and some minutes. Pass the TTFT that `kvrun bench ttft` or your engine shows.

    Example: kvrun bench audit --records 10000000 --json
    """
    from kvrun.bench.audit import AuditBenchSettings, run_audit_bench

    finish(run_audit_bench(AuditBenchSettings(records=records, ttft_ms=ttft_ms)), as_json)


@app.command()
def keys(
    as_json: AsJson = False,
    sessions: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Sessions among which one is erased.")
    ] = 100_000,
) -> None:
    """Time to make a session's keys, to get them again, and to destroy one among many.

    With 100,000 sessions it takes about a minute and 250 MB in the temporary folder.

    Example: kvrun bench keys --sessions 10000
    """
    from kvrun.bench.keys import run_keys_bench

    finish(run_keys_bench(sessions), as_json)


@app.command()
def index(
    as_json: AsJson = False,
    blocks: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Blocks to put into the index.")
    ] = 100_000,
) -> None:
    """Memory that the index takes for one block that is in memory and on disk.

    Example: kvrun bench index --blocks 1000000
    """
    from kvrun.bench.index import run_index_bench

    finish(run_index_bench(blocks), as_json)


@app.command()
def erase(
    as_json: AsJson = False,
    sessions: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Sessions with a key.")
    ] = 10_000,
    blocks: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Blocks in the index, over all sessions.")
    ] = 1_000_000,
    erasures: Annotated[
        int, typer.Option(min=2, max=10_000, help="Sessions to erase, one after the other.")
    ] = 100,
) -> None:
    """Time from a request to erase a session to its signed certificate, in a full deployment.

    Fills a deployment in the temporary folder first; takes a minute or so.

    Example: kvrun bench erase --sessions 10000 --blocks 1000000
    """
    from kvrun.bench.erase import EraseBenchSettings, run_erase_bench

    with Console(stderr=True).status("filling a deployment") as status:
        report = run_erase_bench(EraseBenchSettings(sessions, blocks, erasures), status.update)
    finish(report, as_json)


@app.command()
def console(
    as_json: AsJson = False,
    deployments: Annotated[int, typer.Option(min=2, max=1000, help="Deployments.")] = 100,
    tenants: Annotated[int, typer.Option(min=8, max=100_000, help="End users.")] = 10_000,
    records: Annotated[
        int, typer.Option(min=1000, max=10_000_000, help="Records of the collected log.")
    ] = 1_000_000,
) -> None:
    """Time that the server takes for each page of the console, with much behind it.

    Builds a control plane in the temporary folder first: some minutes and 2 GB there.

    Example: kvrun bench console --records 100000
    """
    from kvrun.bench.console import ConsoleBenchSettings, run_console_bench

    with Console(stderr=True).status("building a control plane") as status:
        report = run_console_bench(
            ConsoleBenchSettings(deployments, tenants, records), status.update
        )
    finish(report, as_json)


def finish(report: Report, as_json: bool) -> None:
    """Print a report and end the command: status 1 when one of its goals was missed."""
    print_report(report, Console(), as_json=as_json)
    raise typer.Exit(1 if report.missed else 0)
