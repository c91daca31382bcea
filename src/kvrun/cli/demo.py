"""``kvrun demo``: play the story of a governed cache with a real model."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.demo.story import Row, StepResult, Story
from kvrun.deployments.spec import ENGINES
from kvrun.launch.engines import usual_engine
from kvrun.launch.stack import Stack, StackOptions
from kvrun.launch.supervisor import ChildState
from kvrun.models.folders import cache_folder


def demo(
    model: Annotated[
        str, typer.Option(help='Folder, Hugging Face id, "demo" (Gemma 3 270M) or "tiny".')
    ] = "demo",
    engine: Annotated[
        str | None,
        typer.Option(help="llama.cpp or vllm; unset: llama.cpp where it is installed, else vllm."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the demo keeps its data; emptied first.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Leave everything running at the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve a real model to two users and show what happens to their cached context.

    Two tenants, restarts of engine and daemon, a damaged block, an erasure and a verified log. The
    exit status is 0 only if every step held, checked on the generated text and on the counters of
    engine and daemon.

    Example: kvrun demo --engine vllm
    """
    engine = engine or usual_engine("llama.cpp", "vllm")
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is not known; allowed: {', '.join(ENGINES)}")
    out = console(stderr=as_json)
    stack: Stack | None = None
    results: list[StepResult] = []
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=out,
    )
    began = time.monotonic()
    try:
        with progress:
            task = progress.add_task("", total=None)

            def say(text: str) -> None:
                progress.update(task, description=text)
                if not out.is_terminal:
                    out.print(text, highlight=False)

            def child(name: str, state: ChildState) -> None:
                say(f"{name}: {state.value}")

            say(f"preparing the model for {engine}")
            options = StackOptions(model=model, engine=engine)
            stack = Stack(folder or cache_folder() / "demo", options, say, child)
            _stop_on_signals(stack)
            playing = stack
            playing.start()

            def restart(*, stop: tuple[str, ...], start: tuple[str, ...]) -> None:
                playing.stop(*stop) if stop else None
                playing.start(*start) if start else None

            for title, step in Story(stack, restart).steps():
                say(title)
                result = step()
                results.append(result)
                out.print(Text.assemble(("ok", "green"), f" {title}: {result.shown}"))
        rows = [result.row for result in results if result.row is not None]
        if as_json:
            print_json({"held": True, "rows": [asdict(row) for row in rows]})
        else:
            _print_table(rows)
            out.print(f"every step held, in {time.monotonic() - began:.0f} s", highlight=False)
        if keep:
            _keep_running(stack)
    finally:
        if stack is not None:
            stack.stop()


def _print_table(rows: list[Row]) -> None:
    shown = table("step", "tenant", "prompt tokens", "reused", "from", "first token")
    for row in rows:
        shown.add_row(
            row.step,
            row.tenant,
            str(row.prompt_tokens),
            str(row.reused_tokens),
            row.tier or "-",
            f"{row.ttft_s:.2f} s",
        )
    console().print(shown)


def _keep_running(stack: Stack) -> None:
    out = console()
    places = (
        f"gateway {stack.url}/v1",
        f"health {stack.url}/readyz",
        f"data {stack.config.instance.data_dir}",
    )
    out.print("\n" + " · ".join(places), soft_wrap=True)
    out.print(
        f"\n  curl {stack.url}/v1/completions \\\n"
        f"    -H 'Authorization: Bearer {stack.api_key}' -H 'X-KV-Tenant: alice' \\\n"
        f"    -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "demo", "prompt": "Water boils at", "max_tokens": 16}}\'\n',
        soft_wrap=True,
    )
    out.print("Ctrl-C stops it.")
    stack.supervisor.watch()


def _stop_on_signals(stack: Stack) -> None:
    def stop(number: int, _: object) -> None:
        stack.supervisor.request_stop()
        if number == signal.SIGTERM:
            stack.stop()
            sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
