"""``kvrun status``: what runs on a data folder."""

from typing import Any

import msgspec
from rich.text import Text

from kvrun.audit.record import format_time
from kvrun.audit.settings import LogHealth
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.witness_choice import witness_line
from kvrun.config import KvrunConfig
from kvrun.config.values import size_text
from kvrun.control.alerts import AlertBook
from kvrun.control.remembered import Memory
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.launch.processes import engine_url, gateway_url
from kvrun.launch.readiness import http_answers
from kvrun.launch.running import read_running


def status(config_file: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Show which processes run, what the cache holds, and whether the audit log can be written.

    Ends with status 0 when daemon, engine and gateway answer, else 1.

    Example: kvrun status --json
    """
    import typer

    config = read_config(config_file)
    answer = collect(config)
    if as_json:
        print_json(answer)
    else:
        _print(answer, witness_line(config))
    ready = all(answer[name]["ready"] for name in ("gateway", "engine", "instance"))
    raise typer.Exit(0 if ready else 1)


def collect(config: KvrunConfig) -> dict[str, Any]:
    """Everything that ``status`` shows, as plain values."""
    running = read_running(config.layout)
    instance: dict[str, Any] = {"ready": False}
    try:
        instance = {"ready": True, **msgspec.json.decode(ask_daemon(config, "status"))}
    except KvrunError as error:
        instance["reason"] = error.message
    pids = running.processes if running is not None else {}
    urls = {"gateway": (gateway_url(config), "/healthz"), "engine": (engine_url(config), "/health")}
    processes = {
        name: {"ready": http_answers(url, path), "url": url, "pid": pids.get(name)}
        for name, (url, path) in urls.items()
    }
    return {
        "data_dir": str(config.instance.data_dir),
        "up": running.pid if running is not None else None,
        "model": running.model if running is not None else config.deployment.model,
        "witness": list(config.witness.names),
        "collected": _collected(config),
        **processes,
        "instance": {"pid": pids.get("instance"), **instance},
    }


def _collected(config: KvrunConfig) -> dict[str, Any]:
    """What the collector remembers of the logs, and how many alerts wait."""
    control = config.layout.control
    try:
        logs = Memory(control / "logs").all()
        alerts = AlertBook(control / "alerts").all()
    except KvrunError as error:
        return {"error": error.message, "logs": [], "alerts": 0}
    return {
        "alerts": sum(item.acknowledged_at is None for item in alerts),
        "logs": [
            {
                "log": item.log,
                "records": item.seen.size,
                "stored": item.stored.size,
                "collected_at": item.collected_at,
                "alert": item.alert,
                "retired": item.retired,
            }
            for item in logs
        ],
    }


def _print(answer: dict[str, Any], witnesses: Text) -> None:
    out = console()
    rows = table("process", "state", "pid", "where")
    instance = answer["instance"]
    for name, where in (
        ("instance", answer["data_dir"]),
        ("engine", answer["engine"]["url"]),
        ("gateway", answer["gateway"]["url"]),
    ):
        state = Text("ready", "green") if answer[name]["ready"] else Text("away", "red")
        rows.add_row(name, state, str(answer[name].get("pid") or "-"), where)
    out.print(rows)
    out.print()
    out.print(witnesses)
    out.print(_collected_text(answer["collected"]))
    if not instance["ready"]:
        out.print(f"\n{instance['reason']}")
        return
    cache = instance["cache"]
    facts = table("what", "value")
    facts.add_row("deployment", f"{instance['workspace']}/{instance['deployment']}")
    facts.add_row("model", answer["model"])
    facts.add_row("engine", instance["engine"] or "not connected")
    facts.add_row("sessions with a key", str(instance["sessions"]))
    facts.add_row("memory cells free", f"{cache['free_cells']} of {cache['cells']}")
    facts.add_row("disk tier", size_text(cache["disk_bytes"]))
    if cache["has_objects"]:
        held = Text(size_text(cache["object_bytes"]))
        if not cache["object_available"]:
            held = Text.assemble(held, ", ", ("Storage does not answer", "red"))
        facts.add_row("object tier", held)
    facts.add_row("audit log", audit_text(msgspec.convert(instance["audit"], LogHealth)))
    for name, value in sorted(instance["protections"].items()):
        facts.add_row(f"protection: {name}", value)
    out.print()
    out.print(facts)


def _collected_text(collected: dict[str, Any]) -> Text:
    if "error" in collected:
        return Text(f"collected: {collected['error']}", "red")
    lines = [
        Text(
            f"collected: {item['log']}: {item['records']} records, {item['stored']} in "
            f"Storage, last at {format_time(item['collected_at'])[:19]}Z"
        )
        for item in collected["logs"]
    ] or [Text("collected: nothing yet")]
    if collected["alerts"]:
        lines.append(Text(f"{collected['alerts']} alerts wait: `kvrun audit alerts`", "red"))
    return Text("\n").join(lines)


def audit_text(health: LogHealth) -> Text:
    """The audit log's state for people, with what to do where something is to be done."""
    state = "can be written" if health.available else f"CANNOT be written: {health.why}"
    lines = [Text(f"{health.records} records, {state}")]
    if health.lost:
        lines.append(Text(f"{health.lost} records were lost since the start", "red"))
    if health.nearly_full:
        used = f"{size_text(health.stored_bytes)} of {size_text(health.quota_bytes)}"
        lines.append(Text(f"{used} wait to be collected: run `kvrun audit collect`", "yellow"))
    return Text("\n").join(lines)
