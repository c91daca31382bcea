"""``kvrun audit export`` and ``kvrun audit ship``: hand the log to other programs."""

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.cursor import read_records
from kvrun.audit.errors import AuditError
from kvrun.audit.export import ExportFormat, Selection, export_lines, parse_moment
from kvrun.audit.record import Event, Record
from kvrun.audit.segment import first_seq_of, list_segments
from kvrun.audit.ship import DeliveryError, ShipError, Shipper
from kvrun.audit.sinks import open_sink
from kvrun.cli.audit_folder import LogFolder, read_log
from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile, console
from kvrun.filelock import FileTakenError, hold_file

Format = Annotated[ExportFormat, typer.Option("--format", help="jsonl: the records as they are.")]
Since = Annotated[
    str, typer.Option("--from", help="Only from this time on (UTC), such as 2026-01-31T12:00.")
]
Until = Annotated[str, typer.Option("--to", help="Only before this time.")]
Events = Annotated[list[Event] | None, typer.Option("--event", help="Only these; repeatable.")]


def export(
    form: Format = ExportFormat.JSONL,
    since: Since = "",
    until: Until = "",
    event: Events = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A new file instead of standard output.")
    ] = None,
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Write the log's records as JSON lines, CSV or OCSF events, one a line.

    An export is for reading and for a SIEM; what proves something are the segments themselves.

    Example: kvrun audit export --format ocsf --from 2026-01-01 --to 2026-02-01 --out january.jsonl
    """
    selection = Selection(
        since=parse_moment(since), until=parse_moment(until), events=frozenset(event or ())
    )
    log = read_log(folder, config_file, "export")
    records = (record for record in read_records(log) if selection.takes(record))
    segments = list_segments(log)
    if segments and (first := first_seq_of(segments[0]) or 0):
        console(stderr=True).print(
            f"records 0 to {first - 1} are no longer in {log}: the collected log has them",
        )
    if out is None:
        for line in export_lines(records, form):
            sys.stdout.write(line)
        return
    count = _write_new(out, records, form)
    console(stderr=True).print(f"{count} records in {out}")


def ship(
    to: Annotated[str, typer.Option("--to", help="stdout, file:PATH or otlp:URL.")],
    form: Format = ExportFormat.JSONL,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the log's present end instead of following it.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="File that says how far it got; by default one for each receiver."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Go on where records are no longer here.")
    ] = False,
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Send the log's records on as they come, until it is interrupted.

    It resumes where it stopped. Every record arrives at least once; a repeated one has the same
    log and number. A receiver that is away is tried again for ever, at most once a minute. Headers
    for OTLP are read from OTEL_EXPORTER_OTLP_HEADERS.

    Example: kvrun audit ship --to otlp:http://collector:4318
    """
    log = read_log(folder, config_file, "ship")
    place = state or log.with_name(log.name + "-shipped") / f"{_short(to)}.json"
    stop = _stop_on_signals()
    with _held(place):
        sink = open_sink(to, form, stdout=sys.stdout.buffer, environment=os.environ)
        shipper = Shipper(log, sink, place, skip_missing=skip_missing)
        err = console(stderr=True)

        def failed(error: DeliveryError, delay: float) -> None:
            err.print(f"{error.message}; trying again in {delay:.0f} s")

        shipper.run(wait=stop.wait, follow=not once, on_failure=failed)
        refused = f", {shipper.refused} of them refused" if shipper.refused else ""
        err.print(
            f"{shipper.delivered} records shipped to {sink.name}{refused}; "
            f"the next is record {shipper.next_seq}",
        )
        if shipper.refused:
            raise typer.Exit(1)


def _write_new(out: Path, records: Iterator[Record], form: ExportFormat) -> int:
    """Write through a file beside it, so that ``out`` is whole or not there."""
    partial = out.with_name(out.name + ".partial")
    count = 0
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii", newline="") as file:
            for line in export_lines(records, form):
                file.write(line)
                count += 1
        partial.replace(out)
    except OSError as error:
        raise AuditError(f"{out} cannot be written: {error.strerror}") from None
    return count - (form is ExportFormat.CSV)


def _short(target: str) -> str:
    return hashlib.sha256(target.encode()).hexdigest()[:16]


@contextmanager
def _held(place: Path) -> Iterator[None]:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = hold_file(place.with_suffix(".lock"), str(os.getpid()))
    except FileTakenError as error:
        raise ShipError(
            f"process {error.holder or '?'} already ships to this receiver",
            hint="Stop it, or give this one a --state of its own.",
        ) from None
    except OSError as error:
        raise ShipError(f"{place} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
