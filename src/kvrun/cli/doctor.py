"""``kvrun doctor``: what this machine can and cannot do for a deployment."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import typer
from rich.text import Text

from kvrun.cli.isolation import isolation
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.probes import (
    Check,
    Level,
    check_cryptography,
    check_engine,
    check_filesystem,
    check_memlock,
    check_memory,
    check_port,
    check_python,
    check_secret_memory,
    check_speed,
)
from kvrun.cli.root_probe import check_root
from kvrun.cli.witness_choice import check_witness
from kvrun.config import KvrunConfig, parse_config
from kvrun.errors import KvrunError

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


app = typer.Typer(invoke_without_command=True)
app.command("isolation")(isolation)


@app.callback()
def doctor(
    context: typer.Context, config_file: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Check this machine: each line is ok, warn or fail, with what to do next.

    Ends with status 1 when a line is fail. Without a kvrun.toml the defaults are checked.

    Example: kvrun doctor --json
    """
    if context.invoked_subcommand is not None:
        return
    checks = run_checks(config_file)
    if as_json:
        print_json({"checks": checks, "failed": sum(c.level is Level.FAIL for c in checks)})
    else:
        _print(checks)
    raise typer.Exit(1 if any(check.level is Level.FAIL for check in checks) else 0)


def run_checks(config_file: Path) -> list[Check]:
    """Every check; a configuration that cannot be read is one failed line."""
    config: KvrunConfig | None = None
    checks: list[Check] = []
    if config_file.exists() or os.environ.get("KVRUN_CONFIG"):
        try:
            config = read_config(config_file)
            checks.append(Check("configuration", Level.OK, str(config_file)))
        except KvrunError as error:
            checks.append(
                Check("configuration", Level.FAIL, error.message, error.hint or "correct it")
            )
    else:
        note = f"{config_file} does not exist; the defaults are checked"
        checks.append(Check("configuration", Level.WARN, note, "kvrun init writes one"))
    config = config or parse_config("", {}, source=Path.cwd() / DEFAULT_CONFIG)
    memory = config.instance.memory_bytes
    probes: tuple[Callable[[], Check], ...] = (
        check_python,
        check_cryptography,
        lambda: check_speed(time.perf_counter),
        lambda: check_memlock(memory, strict=config.deployment.strict),
        check_secret_memory,
        lambda: check_memory(memory),
        lambda: check_filesystem(config.instance.data_dir),
        lambda: check_root(config),
        lambda: check_engine(config),
        lambda: check_port(config.gateway.host, config.gateway.port),
        lambda: check_witness(config),
    )
    return checks + [probe() for probe in probes]


def _print(checks: list[Check]) -> None:
    rows = table("check", "result", "found", "next step")
    for check in checks:
        level = Text(check.level.value, _STYLES[check.level])
        rows.add_row(check.name, level, check.found, check.next_step)
    console().print(rows)
