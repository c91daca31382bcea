"""``kvrun audit``: read this instance's audit log."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.checkpoint import parse_checkpoint
from kvrun.audit.errors import AuditError
from kvrun.audit.merkle import inclusion_proof, leaf_hashes
from kvrun.audit.note import parse_note
from kvrun.audit.proof import LogProof
from kvrun.audit.record import Event, as_line
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    first_seq_of,
    list_segments,
    read_chunks,
    read_records,
)
from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile, read_config
from kvrun.config.layout import DataLayout

app = typer.Typer(no_args_is_help=True)

LogFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="The log's folder; by default the one of the configuration."),
]
POLL_SECONDS = 0.25


@app.callback()
def audit() -> None:
    """Read the audit log: what happened to cached context, one JSON record a line."""


@app.command()
def tail(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many to start with.")
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come.")] = False,
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print the newest records, and with --follow the ones to come.

    Example: kvrun audit tail -f | jq .event
    """
    log = _folder(folder, config_file)
    start = max(0, _next_seq(log) - lines)
    while True:
        for record in read_records(log, from_seq=start):
            typer.echo(as_line(record))
            start = record.seq + 1
        if not follow:
            return
        time.sleep(POLL_SECONDS)


@app.command()
def show(
    request: Annotated[str | None, typer.Option(help="Only this request id.")] = None,
    event: Annotated[Event | None, typer.Option(help="Only this event.")] = None,
    tenant_ref: Annotated[str | None, typer.Option(help="Only this tenant reference.")] = None,
    session_ref: Annotated[str | None, typer.Option(help="Only this session reference.")] = None,
    since: Annotated[str, typer.Option(help="Only from this time on, such as 2026-01-31T12.")] = "",
    from_seq: Annotated[int, typer.Option(min=0, help="Only from this record on.")] = 0,
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print the records that match every given filter.

    Example: kvrun audit show --event key_destroyed --since 2026-01-31
    """
    wanted = {
        "request_id": request,
        "event": event,
        "tenant_ref": tenant_ref,
        "session_ref": session_ref,
    }
    filters = {name: value for name, value in wanted.items() if value is not None}
    for record in read_records(_folder(folder, config_file), from_seq=from_seq):
        matches = all(getattr(record, name) == value for name, value in filters.items())
        if matches and record.ts >= since:
            typer.echo(as_line(record))


@app.command()
def checkpoint(folder: LogFolder = None, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Print the latest signed checkpoint. Keep it elsewhere: it is what shows a later rollback.

    Example: kvrun audit checkpoint > /mnt/elsewhere/checkpoint
    """
    typer.echo(_checkpoint(_folder(folder, config_file)).decode(), nl=False)


@app.command()
def prove(
    seq: Annotated[int, typer.Argument(min=0, help="The record's sequence number.")],
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print a C2SP tlog-proof that one record is in the log. Reads the log from its start.

    Example: kvrun audit prove 1234 > record.tlog-proof
    """
    log = _folder(folder, config_file)
    note = _checkpoint(log)
    size = parse_checkpoint(parse_note(note).text).size
    if seq >= size:
        raise AuditError(f"the latest checkpoint covers records 0 to {size - 1}, not {seq}")
    leaves = [leaf for chunk in _lines(log) for leaf in leaf_hashes(chunk)][:size]
    if len(leaves) < size:
        raise AuditError("a proof needs every record from the first on; some are not here")
    proof = LogProof(seq, tuple(inclusion_proof(leaves, seq)), note)
    typer.echo(proof.encode().decode(), nl=False)


def _folder(folder: Path | None, config_file: Path) -> Path:
    log = folder or DataLayout(read_config(config_file).instance.data_dir).audit
    if not log.is_dir():
        raise AuditError(f"there is no audit log in {log}")
    return log


def _checkpoint(log: Path) -> bytes:
    try:
        return (log / CHECKPOINT_NAME).read_bytes()
    except FileNotFoundError:
        raise AuditError(f"the audit log in {log} has no checkpoint yet") from None


def _lines(log: Path) -> Iterator[list[bytes]]:
    for segment in list_segments(log):
        for chunk in read_chunks(segment):
            yield chunk.split(b"\n")[:-1]


def _next_seq(log: Path) -> int:
    segments = list_segments(log)
    if not segments:
        return 0
    first = first_seq_of(segments[-1]) or 0
    return first + sum(1 for _ in read_records(log, from_seq=first))
