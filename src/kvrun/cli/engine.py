"""``kvrun engine``: whether an engine does what kvrun promises, checked on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.deployments.spec import ENGINES

app = typer.Typer(no_args_is_help=True)


@app.callback()
def engine() -> None:
    """Check what an engine does with the governed cache."""


@app.command()
def check(
    name: Annotated[str, typer.Option("--engine", help="vllm or llama.cpp.")] = "vllm",
    model: Annotated[
        str | None,
        typer.Option(help='Folder, file, "demo" or "tiny"; unset: the smallest there is.'),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--check", help="One check by its name; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a deployment of an engine and check isolation, erasure, faults and statistics.

    The same named checks for every engine: identical answers after a reload, no reuse by another
    tenant or session from any tier, a restart, a changed byte, an erasure, a stateless deployment,
    the context window, a daemon that stands still or is gone. Takes some minutes and ends with
    status 1 when a check was not met.

    Example: kvrun engine check --engine llama.cpp --json
    """
    from kvrun.conformance.run import NAMES, run_checks

    if name not in ENGINES:
        raise typer.BadParameter(f"{name!r} is not known; allowed: {', '.join(ENGINES)}")
    unknown = sorted(set(only or ()) - set(NAMES))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is no check; there are: {', '.join(NAMES)}")
    out = console(stderr=True)
    with out.status("starting") as status:
        rows = run_checks(
            name, model or ("tiny" if name == "vllm" else "demo"), only or NAMES, status.update
        )
    if as_json:
        print_json(rows)
    else:
        shown = table("engine", "check", "met", "detail")
        for row in rows:
            shown.add_row(row.engine, row.check, "yes" if row.met else "no", escape(row.detail))
        console().print(shown)
    raise typer.Exit(0 if all(row.met for row in rows) else 1)
