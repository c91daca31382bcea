"""What ``kvrun audit collect``, ``alerts``, ``acknowledge`` and ``kvrun instance retire`` do.

Apart from their signatures, so that no other command loads what only the control plane needs.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvrun.cli.collecting import run_collector, webhook_of
from kvrun.cli.options import console, print_json, table
from kvrun.config import KvrunConfig
from kvrun.config.values import size_text
from kvrun.control.alerts import Alert
from kvrun.control.collector import CollectOutcome, CollectReport
from kvrun.control.cosigner import open_cosigner
from kvrun.control.plane import ControlPlane
from kvrun.control.retire import retire as retire_log
from kvrun.control.rounds import RoundReport, run_round
from kvrun.control.webhook import tell
from kvrun.errors import KvrunError
from kvrun.launch.counters import read_sample

_log = logging.getLogger("kvrun.collector")
_FAILED = (CollectOutcome.UNAVAILABLE,)
_ALARMING = (CollectOutcome.ALERT, CollectOutcome.STOPPED)


def collect_once(config: KvrunConfig, *, as_json: bool) -> int:
    """Collect now; the exit status."""
    plane = ControlPlane(config)
    report = run_round(plane, reason="on_demand", count=lambda: read_sample(config))
    _show(report, as_json=as_json)
    tell(webhook_of(plane))
    outcomes = [item.outcome for item in report.logs]
    if any(outcome in _ALARMING for outcome in outcomes) or report.certificates.problems:
        return 1
    return 3 if any(outcome in _FAILED for outcome in outcomes) else 0


def collect_always(config: KvrunConfig, every_s: int | None, *, as_json: bool) -> None:
    """Collect until SIGTERM or SIGINT."""
    logged = config.log.format == "json" and not as_json

    def show(report: RoundReport) -> None:
        if not logged:
            _show(report, as_json=as_json)
            return
        for line in _lines(report):
            _log.info("%s", line)

    run_collector(config, every_s, show)


def show_alerts(config: KvrunConfig, *, every: bool, as_json: bool) -> int:
    """List alerts; the exit status."""
    book = ControlPlane(config).alerts
    found = book.all()
    waiting = [item for item in found if item.acknowledged_at is None]
    shown = found if every else waiting
    if as_json:
        print_json([_with_place(item, book.place(item.id)) for item in shown])
    else:
        _print_alerts(shown, book.place)
    return 1 if waiting else 0


def acknowledge(
    config: KvrunConfig, log: str, reason: str, *, start_over: bool, as_json: bool
) -> None:
    """Let the collection of a log go on."""
    if not reason.strip():
        raise KvrunError("an acknowledgement needs a reason", hint='--reason "what happened"')
    plane = ControlPlane(config)
    with plane.hold():
        done = plane.alarm.acknowledge(log, reason, start_over=start_over)
    if as_json:
        print_json([_with_place(item, plane.alerts.place(item.id)) for item in done])
        return
    for item in done:
        sys.stdout.write(f"acknowledged: {item.id}\n")
    goes_on = "starts over" if start_over else "goes on from what is remembered"
    sys.stdout.write(f"The next collection {goes_on}.\n")


def retire(config: KvrunConfig, log: str, reason: str, *, as_json: bool) -> None:
    """Close a lost machine's log."""
    if not reason.strip():
        raise KvrunError("retiring a log needs a reason", hint='--reason "what happened"')
    plane = ControlPlane(config)
    with plane.hold():
        statement = retire_log(
            log,
            reason,
            storage=plane.log_storage(),
            memory=plane.memory,
            journal=plane.journal,
            cosigner=open_cosigner(plane.config.layout, plane.now),
            now=plane.now,
        )
    if as_json:
        print_json(statement)
        return
    sys.stdout.write(
        f"{log} is retired with {statement.size} records.\n"
        f"Nothing is known of what it wrote between {statement.uncollected_from} and "
        f"{statement.uncollected_until}.\n"
    )


def _show(report: RoundReport, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(report))
    sys.stdout.flush()


def _lines(report: RoundReport) -> Iterator[str]:
    for item in report.logs:
        yield _line(item)
    for finding in report.findings:
        yield f"finding: {finding.message}"
    if report.certificates.stored:
        yield f"certificates: {report.certificates.stored} stored now"
    for problem in report.certificates.problems:
        yield f"certificates: {problem}"
    for pruned in report.pruned:
        yield f"{pruned.log}: pruned {pruned.records} records"


def _line(item: CollectReport) -> str:
    who = item.log or item.source
    if item.outcome is CollectOutcome.COLLECTED:
        said = ", ".join(f"{name}: {answer}" for name, answer in sorted(item.witnesses.items()))
        return (
            f"{who}: {item.new_records} new records verified, {item.size} in all, "
            f"{item.stored_size} in Storage ({size_text(item.stored_bytes)} now)"
            + (f"; witnesses: {said}" if said else "")
        )
    detail = f": {item.message}" if item.message else ""
    return f"{who}: {item.outcome}{detail}" + (f" [{item.alert}]" if item.alert else "")


def _with_place(alert: Alert, place: Path) -> dict[str, object]:
    return {**msgspec.to_builtins(alert), "evidence": str(place)}


def _print_alerts(found: list[Alert], place: Callable[[str], Path]) -> None:
    out = console()
    if not found:
        out.print("no alert waits")
        return
    for item in found:
        state = (
            "acknowledged"
            if item.acknowledged_at is not None
            else ("collection is stopped" if item.stops else "collection goes on")
        )
        rows = table("alert", item.id)
        rows.add_row("what", f"{item.kind} ({state})")
        rows.add_row("log", item.log)
        rows.add_row("raised", time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(item.raised_at)))
        rows.add_row("detail", item.detail)
        rows.add_row("evidence", str(place(item.id)))
        if item.acknowledged_because:
            rows.add_row("because", item.acknowledged_because)
        out.print(rows)
        out.print()
