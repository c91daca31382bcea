"""``kvrun bench``: measure this machine and print each value with its goal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from kvrun.bench.paired import MIN_PAIRS
from kvrun.bench.report import Report, print_report
from kvrun.bench.seal import SealBenchSettings, run_seal_bench
from kvrun.launch.engines import KINDS, smallest_model

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
        str | None,
        typer.Option(help='Folder, "demo" or "tiny"; all stacks serve it. Usual: the smallest.'),
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm, llama.cpp or sglang.")] = "vllm",
    dtype: Annotated[
        str, typer.Option(help="Number format; CPUs without bfloat16 compute it slowly.")
    ] = "bfloat16",
    rounds: Annotated[
        int | None,
        typer.Option(min=7, max=1000, help="Rounds a length; unset: 15 below 8k tokens, else 7."),
    ] = None,
    copied: Annotated[
        bool,
        typer.Option(help="Also copy instead of sealing: what the cipher costs a reload."),
    ] = True,
) -> None:
    """Time to first token with the governed cache against the plain engine; reload against cold.

    A reload comes from the memory tier, sealed and with a copy for the cipher, and from disk after
    the daemon was restarted. Starts two engines; on two cores vLLM's take 8 GiB of memory, 10
    minutes at 4,000 tokens and 15 at 16,000. Leave the machine alone meanwhile.

    Example: kvrun bench ttft --tokens 4000 --json
    """
    from kvrun.bench.ttft import DEFAULT_TOKENS, TtftSettings, run_ttft_bench

    if engine not in KINDS:
        raise typer.BadParameter(f"{engine!r} is not known; allowed: {', '.join(KINDS)}")
    model = model or smallest_model(engine)
    status = Console(stderr=True).status("starting")
    with status:
        report = run_ttft_bench(
            TtftSettings(tuple(tokens or DEFAULT_TOKENS), model, engine, dtype, rounds, copied),
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

    rounds = 5 if records <= 1_000_000 else 1
    settings = AuditBenchSettings(records=records, rounds=rounds, ttft_ms=ttft_ms)
    finish(run_audit_bench(settings), as_json)


@app.command()
def policy(
    as_json: AsJson = False,
    rules: Annotated[int, typer.Option(min=1, max=1000, help="Policies of the revision.")] = 500,
    tenants: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Tenants that the registry knows.")
    ] = 10_000,
    blocks: Annotated[
        int, typer.Option(min=1000, max=1_000_000, help="Misplaced blocks to take away.")
    ] = 50_000,
    ttft_ms: Annotated[
        float | None,
        typer.Option(min=0.1, help="The engine's TTFT of a reloaded prompt, to compare with."),
    ] = None,
) -> None:
    """Time of a residency decision, of activating a large revision, and of taking blocks away.

    And what requests notice of the two. Takes about a minute on the disk of the temporary folder.

    Example: kvrun bench policy --json
    """
    from kvrun.bench.policy import run_policy_bench

    finish(run_policy_bench(rules, tenants, blocks, ttft_ms), as_json)


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
        list[int] | None,
        typer.Option(min=64, max=100_000_000, help="Blocks in the index; repeatable, ascending."),
    ] = None,
    files: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Blocks in a folder to start on; 0: none.")
    ] = 1_000_000,
) -> None:
    """Memory and time that the index takes, from 10,000 to 10 million blocks, and a start.

    The usual sizes take some minutes, 5 GB of memory and a million small files in the temporary
    folder.

    Example: kvrun bench index --blocks 10000 --blocks 100000 --files 0
    """
    from kvrun.bench.index import IndexBenchSettings, run_index_bench

    usual = IndexBenchSettings()
    with Console(stderr=True).status("starting") as status:
        report = run_index_bench(
            IndexBenchSettings(tuple(sorted(blocks)) if blocks else usual.blocks, files),
            status.update,
        )
    finish(report, as_json)


@app.command()
def restore(
    as_json: AsJson = False,
    blocks: Annotated[int, typer.Option(min=2, max=100_000, help="Blocks to restore.")] = 256,
    block_kib: Annotated[int, typer.Option(min=4, max=65_536, help="Block size in KiB.")] = 4096,
    pairs: Annotated[int, typer.Option(min=MIN_PAIRS, max=1000, help="Rounds to compare.")] = 9,
    folder: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure; unset: a temporary one.")
    ] = None,
    objects: Annotated[
        str | None,
        typer.Option(help="Storage for packs, as storage.url; unset: a folder beside the blocks."),
    ] = None,
    object_option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE as in storage.options; may be given more than once."),
    ] = None,
) -> None:
    """How fast a session comes back from disk and from Storage after a restart.

    The disk is held against fio (a plain sequential read where fio is not installed), Storage
    against range requests alone. Needs three times the blocks' size on the disk, and in memory.

    Example: kvrun bench restore --folder /var/lib/kvrun
    """
    from kvrun.bench.restore import RestoreBenchSettings, run_restore_bench

    given = [option.partition("=") for option in object_option or ()]
    if not all(equals for _, equals, _ in given):
        raise typer.BadParameter("give NAME=VALUE", param_hint="--object-option")
    with Console(stderr=True).status("starting") as status:
        report = run_restore_bench(
            RestoreBenchSettings(
                blocks,
                block_kib << 10,
                pairs=pairs,
                folder=folder,
                objects=objects,
                options={name: value for name, _, value in given},
            ),
            status.update,
        )
    finish(report, as_json)


@app.command()
def capacity(
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests to replay: JSON lines in the format of Mooncake's traces."),
    ] = None,
    as_json: AsJson = False,
    engine: Annotated[
        bool,
        typer.Option("--engine", help="Instead: vLLM on this machine with more sessions than fit."),
    ] = False,
    memory_gb: Annotated[int, typer.Option(min=1, help="Memory tier in GB.")] = 256,
    disk_gb: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Disk tier in GB; repeatable. Usual: 8000, 20000."),
    ] = None,
    tenants: Annotated[
        int, typer.Option(min=1, help="Tenants that the conversations are dealt to.")
    ] = 1024,
) -> None:
    """What GPU, memory, disk and object tier hold of real traffic, simulated for an 80 GB GPU.

    The order in which blocks leave a tier is the daemon's own code; the rest is arithmetic. Takes
    some minutes. With --engine nothing is simulated: 40 sessions of a tiny model take turns on
    a vLLM that has room for 8; some minutes and 4 GB of memory.

    Example: kvrun bench capacity --trace conversation_trace.jsonl
    """
    if engine == (trace is not None):
        raise typer.BadParameter("give either --trace FILE or --engine")
    if engine:
        from kvrun.bench.capacity_engine import EngineCapacitySettings, run_capacity_engine_bench

        with Console(stderr=True).status("starting") as status:
            report = run_capacity_engine_bench(EngineCapacitySettings(), status.update)
        finish(report, as_json)
    assert trace is not None
    from kvrun.bench.capacity import CapacitySettings, run_capacity_bench

    gb = 10**9
    settings = CapacitySettings(
        trace,
        memory_bytes=memory_gb * gb,
        disk_bytes=tuple(size * gb for size in disk_gb or (8_000, 20_000)),
        tenants=tenants,
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("requests", total=None)
        report = run_capacity_bench(
            settings,
            lambda requests: progress.update(task, total=requests),
            lambda requests: progress.advance(task, requests),
        )
    finish(report, as_json)


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

    Fills a deployment in the temporary folder first; takes some minutes.

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


@app.command()
def evidence(
    as_json: AsJson = False,
    records: Annotated[
        int, typer.Option(min=1000, max=10**9, help="Records of the year's log.")
    ] = 100_000_000,
    certificates: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Certificates of the year.")
    ] = 10_000,
    full_records: Annotated[
        int, typer.Option(min=0, max=10**8, help="Records whose segments are exported whole.")
    ] = 1_000_000,
) -> None:
    """Time and memory of a year's evidence, in summary form, and of whole segments.

    Builds both in the temporary folder first: some minutes and 5 GB there.

    Example: kvrun bench evidence --records 1000000 --certificates 100
    """
    from kvrun.bench.evidence import EvidenceBenchSettings, run_evidence_bench

    with Console(stderr=True).status("building") as status:
        report = run_evidence_bench(
            EvidenceBenchSettings(records, certificates, full_records), status.update
        )
    finish(report, as_json)


def finish(report: Report, as_json: bool) -> None:
    """Print a report and end the command: status 1 when one of its goals was missed."""
    print_report(report, Console(), as_json=as_json)
    raise typer.Exit(1 if report.missed else 0)
