"""``kvrun doctor isolation``: canary users try to reach each other's cache, and it is signed."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, console, print_json, read_config
from kvrun.cli.options import table as make_table
from kvrun.isolation.report import Outcome
from kvrun.isolation.run import Options
from kvrun.isolation.service import StoredResult, self_test, stored_results
from kvrun.isolation.target import SelfTestError
from kvrun.isolation.timing import MIN_ROUNDS

_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.SKIPPED: "dim",
}
_EXIT = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 2, Outcome.SKIPPED: 2}
_RESTART_TIMEOUT_S = 1800
_DEFAULT = Options()


def isolation(
    rounds: Annotated[
        int, typer.Option(help=f"Rounds of timing, at least {MIN_ROUNDS}; 0: none.")
    ] = _DEFAULT.rounds,
    words: Annotated[
        int, typer.Option(min=20, max=100_000, help="Length of the made-up prompts in words.")
    ] = _DEFAULT.words,
    restart: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Restart the deployment with this command, to test what comes back.",
        ),
    ] = "",
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with an API key; by default one is made and removed again."),
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Show the last stored result; test nothing.")
    ] = False,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Test the running deployment's isolation with canary users, and store a signed result.

    The same session must reuse its prompt in engine memory and on every tier, with --restart also
    after a restart; another user and another session must not, and their times to first token must
    be those of a miss. Forged identity and the engine's own ways in are tried as well. The canaries
    are erased afterwards. Status 0: passed, 1: it leaks, 2: inconclusive.

    Example: kvrun doctor isolation --restart 'systemctl restart kvrun-chat'
    """
    config = read_config(config_file)
    if last:
        found = stored_results(config)
        if not found:
            raise SelfTestError("no self-test of this deployment is in Storage yet")
        stored = found[0]
    else:
        if rounds and rounds < MIN_ROUNDS:
            raise typer.BadParameter(f"at least {MIN_ROUNDS}, or 0", param_hint="--rounds")
        key = api_key_file.read_text(encoding="ascii").strip() if api_key_file else ""
        with console(stderr=True).status("starting") as status:
            stored = self_test(
                config,
                config_file,
                Options(rounds=rounds, words=words, restart=bool(restart)),
                api_key=key,
                restart=_restart_with(restart) if restart else None,
                say=lambda text: status.update(text),
            )
    if as_json:
        print_json(
            {
                "stored": stored.name,
                "signer": stored.signer,
                "result": msgspec.to_builtins(stored.result),
            }
        )
    else:
        _print(stored)
    raise typer.Exit(_EXIT[stored.result.outcome])


def _restart_with(command: str) -> Callable[[], None]:
    def restart() -> None:
        try:
            subprocess.run(
                shlex.split(command), check=True, capture_output=True, timeout=_RESTART_TIMEOUT_S
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SelfTestError(f"the command {command!r} failed: {error}") from None

    return restart


def _print(stored: StoredResult) -> None:
    result = stored.result
    rows = make_table("check", "outcome", "what was seen")
    for check in result.checks:
        style = _STYLES[check.outcome]
        rows.add_row(check.name, Text(check.outcome.value, style), check.detail)
    out = console()
    out.print(rows)
    out.print(
        f"{result.deployment}: isolation {result.outcome.value}, {result.issued_at[:19]}Z, with"
        f" {result.engine}",
    )
    out.print(f"signed ({stored.signer}) in Storage: {stored.name}", soft_wrap=True)
