"""``kvrun verify``: check a certificate or an audit log offline, trusting nobody who wrote it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.errors import AuditError
from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.verify import Trust
from kvrun.cli.attestations import (
    DEFAULT_BRANCH,
    Branch,
    Repositories,
    Timestamps,
    TsaCertificate,
    read_attestations,
)
from kvrun.cli.certificate import (
    LogProofFile,
    Opening,
    TrustFile,
    check_file,
    is_certificate,
    print_report,
)
from kvrun.cli.evidence import is_bundle, verify_bundle
from kvrun.cli.log_report import print_log_report
from kvrun.cli.trust import read_anchor
from kvrun.erasure.errors import ErasureError


def verify_command(
    segments: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="A certificate; evidence; or segments or log folders."
        ),
    ],
    trust: TrustFile = None,
    subject: Annotated[
        str | None, typer.Option(help="The id that the certificate must be about.")
    ] = None,
    opening: Opening = None,
    log_proof: LogProofFile = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint that somebody else than the log kept. Repeatable."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="File with the log's verifier key, from a trusted source.")
    ] = None,
    witness_key: Annotated[
        Path | None, typer.Option(help="File with the verifier keys of witnesses, one a line.")
    ] = None,
    repository: Repositories = None,
    branch: Branch = DEFAULT_BRANCH,
    timestamp: Timestamps = None,
    tsa_certificate: TsaCertificate = None,
    max_age: Annotated[
        float | None, typer.Option(help="Fail if the last record is older than this many seconds.")
    ] = None,
    max_silence: Annotated[
        float, typer.Option(help="Longest pause of a running writer, in seconds.")
    ] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Verify an erasure certificate, a bundle of evidence or an audit log offline.

    A certificate and evidence: one line a check. An audit log: integrity, completeness, freshness,
    witnessed. Ends with status 0 when nothing failed under a trusted key, 1 when something failed,
    and 2 when nothing failed but the signing key was only taken from the file itself (no --trust
    or --key).

    Example: kvrun verify certificate.json --trust anchor.json
    """
    if len(segments) == 1 and is_bundle(segments[0]):
        raise typer.Exit(verify_bundle(segments[0], trust, as_json=as_json))
    attested = read_attestations(repository or (), branch, timestamp or (), tsa_certificate)
    about_one = subject is not None or opening is not None or log_proof is not None
    if about_one or any(map(is_certificate, segments)):
        if len(segments) != 1:
            raise ErasureError("one certificate at a time", hint="Name one file.")
        checked = check_file(
            segments[0],
            trust=trust,
            opening=opening,
            subject=subject,
            now=time.time(),
            attested=attested,
            log_proof=log_proof,
        )
        print_report(checked, as_json)
        raise typer.Exit(checked.exit_code)
    anchor = read_anchor(trust) if trust else None
    known = Trust(
        keys=(read_keys(key) if key else ()) + (anchor.logs() if anchor else ()),
        witnesses=(read_keys(witness_key) if witness_key else ())
        + (anchor.witnesses() if anchor else ()),
        remembered=tuple(_read(path) for path in checkpoint or ()),
        attested=attested,
        now=time.time(),
        max_age_seconds=max_age,
        max_silence_seconds=max_silence,
    )
    report = verify_files(segments, known)
    print_log_report(report, as_json=as_json)
    raise typer.Exit(report.exit_code)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuditError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
