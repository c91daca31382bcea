"""``kvrun audit``: read this instance's audit log."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.checkpoint import parse_checkpoint
from kvrun.audit.cursor import LogCursor, read_records
from kvrun.audit.errors import AuditError
from kvrun.audit.export import Selection, parse_moment
from kvrun.audit.merkle import inclusion_proof, leaf_hashes
from kvrun.audit.note import parse_note
from kvrun.audit.proof import LogProof
from kvrun.audit.record import as_line
from kvrun.audit.segment import (
    CHECKPOINT_NAME,
    first_seq_of,
    list_segments,
    read_chunks,
)
from kvrun.cli.audit_export import Events, Since, Until, export, ship
from kvrun.cli.audit_folder import LogFolder, log_folder, read_log
from kvrun.cli.audit_whois import whois
from kvrun.cli.collect import acknowledge, alerts, collect, try_webhook
from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile

app = typer.Typer(no_args_is_help=True)

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
    log = read_log(folder, config_file, "tail")
    cursor = LogCursor(log, max(0, _next_seq(log) - lines))
    while True:
        records = cursor.read()
        for record in records:
            typer.echo(as_line(record))
        if not records:
            if not follow:
                return
            time.sleep(POLL_SECONDS)


@app.command()
def show(
    which: Annotated[
        str,
        typer.Argument(metavar="[SEQ|REQUEST_ID]", help="One record, or a request's records."),
    ] = "",
    request: Annotated[str, typer.Option(help="Only this request id.")] = "",
    event: Events = None,
    tenant_ref: Annotated[str, typer.Option(help="Only this tenant reference.")] = "",
    session_ref: Annotated[str, typer.Option(help="Only this session reference.")] = "",
    since: Since = "",
    until: Until = "",
    from_seq: Annotated[int, typer.Option(min=0, help="Only from this record on.")] = 0,
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print one record by its number, a request's records, or those that match every filter.

    Ends with status 1 when the number or request is not in the log.

    Example: kvrun audit show --event key_destroyed --from 2026-01-31
    """
    log = read_log(folder, config_file, "show")
    if which.isdecimal():
        record = next(read_records(log, from_seq=int(which)), None)
        if record is None or record.seq != int(which):
            raise AuditError(f"there is no record {which} in {log}")
        typer.echo(as_line(record))
        return
    selection = Selection(
        since=parse_moment(since),
        until=parse_moment(until),
        events=frozenset(event or ()),
        request_id=which or request,
        tenant_ref=tenant_ref,
        session_ref=session_ref,
    )
    found = False
    for record in filter(selection.takes, read_records(log, from_seq=from_seq)):
        found = True
        typer.echo(as_line(record))
    if which and not found:
        raise AuditError(f"there is no record of a request {which!r} in {log}")


@app.command()
def checkpoint(folder: LogFolder = None, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Print the latest signed checkpoint. Keep it elsewhere: it is what shows a later rollback.

    Example: kvrun audit checkpoint > /mnt/elsewhere/checkpoint
    """
    typer.echo(_checkpoint(log_folder(folder, config_file)).decode(), nl=False)


@app.command()
def prove(
    seq: Annotated[int, typer.Argument(min=0, help="The record's sequence number.")],
    folder: LogFolder = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print a C2SP tlog-proof that one record is in the log. Reads the log from its start.

    Example: kvrun audit prove 1234 > record.tlog-proof
    """
    log = log_folder(folder, config_file)
    note = _checkpoint(log)
    size = parse_checkpoint(parse_note(note).text).size
    if seq >= size:
        raise AuditError(f"the latest checkpoint covers records 0 to {size - 1}, not {seq}")
    leaves = [leaf for chunk in _lines(log) for leaf in leaf_hashes(chunk)][:size]
    if len(leaves) < size:
        raise AuditError("a proof needs every record from the first on; some are not here")
    proof = LogProof(seq, tuple(inclusion_proof(leaves, seq)), note)
    typer.echo(proof.encode().decode(), nl=False)


app.command()(collect)
app.command()(alerts)
app.command()(acknowledge)
app.command()(try_webhook)
app.command()(export)
app.command()(ship)
app.command()(whois)


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
