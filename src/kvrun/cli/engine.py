"""``kvrun engine``: whether an engine does what kvrun promises, checked on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.launch.engines import KINDS, smallest_model

app = typer.Typer(no_args_is_help=True)
_SERVER_SETTING = "KVRUN_ENGINE__LLAMA_SERVER"


@app.callback()
def engine() -> None:
    """Check what an engine does with the governed cache."""


@app.command()
def check(
    name: Annotated[str, typer.Option("--engine", help="vllm, llama.cpp or sglang.")] = "vllm",
    model: Annotated[
        str | None,
        typer.Option(help='Folder, file, "demo" or "tiny"; unset: the smallest there is.'),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--check", help="One check by its name; repeatable.")
    ] = None,
    llama_server: Annotated[
        Path | None, typer.Option(help="A stock llama-server instead of xllamacpp.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a deployment of an engine and check isolation, erasure, faults and statistics.

    The same named checks for every engine: identical answers after a reload, no reuse by another
    tenant or session from any tier, Storage too, a restart, a changed byte, an erasure, a log that
    verifies, a stateless deployment, the context window, a daemon that stands still or is gone.
    SGLang is checked in its own environment. The connector for TensorRT-LLM is
    interface-checked, not yet run on TensorRT-LLM: kvrun does not start that engine.
    Takes some minutes and ends with status 1 when a check was not met.

    Example: kvrun engine check --engine llama.cpp --json
    """
    from kvrun.bench.machine import describe_commit, describe_machine
    from kvrun.conformance.run import NAMES, run_checks
    from kvrun.engines.checked import CheckRecord
    from kvrun.engines.vllm.installed import EngineMissingError
    from kvrun.launch.engines import installed_engine

    if name == "tensorrt-llm":
        raise EngineMissingError(
            "TensorRT-LLM is interface-checked, not yet run on TensorRT-LLM, and kvrun does not "
            "start it",
            hint="where it is installed, scripts/trtllm-acceptance checks kvrun's connector",
        )
    if name not in KINDS:
        raise typer.BadParameter(f"{name!r} is not known; allowed: {', '.join(KINDS)}")
    unknown = sorted(set(only or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no check; there are: {', '.join(NAMES)}")
    if llama_server is not None and name != "llama.cpp":
        raise typer.BadParameter("--llama-server is for --engine llama.cpp")
    installed = installed_engine(name, llama_server)
    settings = {} if llama_server is None else {_SERVER_SETTING: str(llama_server.absolute())}
    out = console(stderr=True)
    with out.status("starting") as status:
        rows = run_checks(
            name,
            model or smallest_model(name),
            only or NAMES,
            status.update,
            settings,
        )
    record = CheckRecord(
        engine=name,
        version=f"{installed.distribution} {installed.version}",
        date=datetime.now(UTC).date().isoformat(),
        commit=describe_commit(),
        machine=describe_machine(),
        rows=tuple(rows),
    )
    if as_json:
        print_json(record)
    else:
        shown = table("engine", "check", "met", "detail")
        for row in rows:
            shown.add_row(row.engine, row.check, "yes" if row.met else "no", row.detail)
        console().print(shown)
    raise typer.Exit(0 if all(row.met for row in rows) else 1)
