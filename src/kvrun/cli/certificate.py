"""``kvrun certificate``: find and show erasure certificates; and their half of ``kvrun verify``."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvrun.audit.attestation import Attestation
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.cli.trust import read_anchor
from kvrun.erasure.check import check_certificate
from kvrun.erasure.document import MAX_CERTIFICATE_BYTES
from kvrun.erasure.errors import CertificateFormatError, ErasureError
from kvrun.erasure.logproof import MAX_LOG_PROOF_BYTES
from kvrun.erasure.report import CertificateReport, CheckCode
from kvrun.erasure.view import class_text
from kvrun.erasure.view_html import certificate_html

app = typer.Typer(no_args_is_help=True)

_PROOF_SUFFIX = ".log-proof"

Opening = Annotated[
    Path | None,
    typer.Option(help="The opening that was handed out with a certificate."),
]
LogProofFile = Annotated[
    Path | None,
    typer.Option(
        "--log-proof",
        help="The file beside a certificate that shows it in the control plane's log.",
    ),
]
TrustFile = Annotated[
    Path | None,
    typer.Option("--trust", help="The operator's trust anchor, from a trusted source."),
]


@app.callback()
def certificate() -> None:
    """Erasure certificates: find them in Storage, and show them as people read them."""


@app.command("list")
def list_command(
    reference: Annotated[str, typer.Option("--ref", help="Only those with this reference.")] = "",
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """List the deployment's certificates in the workspace's Storage. Nothing is verified.

    Collection (`kvrun audit collect`, or `kvrun up` beside the engine) puts them there;
    `kvrun erase list` shows what the deployment itself has.

    Example: kvrun certificate list --ref DSAR-123
    """
    from kvrun.control.plane import ControlPlane

    found = ControlPlane(read_config(config_file)).certificates().find(reference)
    if as_json:
        print_json(found)
        return
    rows = table("id", "kind", "issued", "reference", "class", "keys")
    for item in found:
        rows.add_row(
            item.id,
            item.kind,
            item.issued_at[:19],
            item.reference,
            class_text(item.claim_class, item.children),
            str(item.keys),
        )
    console().print(rows if found else "no certificate")


@app.command()
def get(
    certificate_id: Annotated[str, typer.Argument(metavar="ID", help="The certificate's id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it here; by default ID.json.")
    ] = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Fetch a certificate from the workspace's Storage, as it is stored there.

    Its proof in the control plane's log is written beside it, with `.log-proof` in place of its
    suffix, once there is one: after the next collection.

    Example: kvrun certificate get 5f0c1d7e9a3b2c4d6e8f0a1b -o certificate.json
    """
    from kvrun.control.plane import ControlPlane

    path = output or Path(f"{certificate_id}.json")
    if path.suffix == _PROOF_SUFFIX:
        raise ErasureError(
            f"a certificate is not written to {path}: its log proof has this name",
            hint="Name a file that ends in .json, as ID.json.",
        )
    shelf = ControlPlane(read_config(config_file)).certificates()
    _write(path, shelf.get(certificate_id))
    typer.echo(f"certificate: {path}")
    proof = shelf.proof(certificate_id)
    if proof is not None:
        beside = path.with_suffix(_PROOF_SUFFIX)
        _write(beside, proof)
        typer.echo(f"log proof: {beside}")


@app.command()
def view(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate.")],
    html: Annotated[Path | None, typer.Option(help="Write an HTML page here.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Write a PDF here.")] = None,
    trust: TrustFile = None,
    opening: Opening = None,
) -> None:
    """Write a certificate as a page to read or print, with the results of its checks.

    The page is a view: only the certificate itself can be verified. Ends like `kvrun verify`.

    Example: kvrun certificate view certificate.json --trust anchor.json --html certificate.html
    """
    if html is None and pdf is None:
        raise ErasureError("nothing to write", hint="Name a file with --html or --pdf.")
    now = time.time()
    report = check_file(file, trust=trust, opening=opening, subject=None, now=now)
    if report.statement is None:
        raise CertificateFormatError(
            f"{file} cannot be shown: {report.checks[-1].detail}",
            hint="`kvrun verify` says what is wrong with it.",
        )
    if html is not None:
        html.write_bytes(certificate_html(report, now=now))
    if pdf is not None:
        # The PDF library is an extra, and only this needs it.
        from kvrun.erasure.view_pdf import certificate_pdf

        pdf.write_bytes(certificate_pdf(report, now=now))
    console(stderr=True).print(report_text(report))
    raise typer.Exit(report.exit_code)


def is_certificate(path: Path) -> bool:
    """Whether a file's content claims to be a certificate, whole or not."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, path.stat().st_size - 4096))
        return b'"envelope"' in head or b'"kvrun-certificate/' in head + file.read(4096)


def check_file(
    path: Path,
    *,
    trust: Path | None,
    opening: Path | None,
    subject: str | None,
    now: float,
    attested: Sequence[Attestation] = (),
    log_proof: Path | None = None,
) -> CertificateReport:
    """Check the certificate in a file. Raises CertificateFormatError for an unreadable path."""
    anchor = read_anchor(trust) if trust else None
    return check_certificate(
        _read(path, MAX_CERTIFICATE_BYTES + 1),
        anchor=anchor,
        now=now,
        opening=_read(opening, 1 << 16) if opening else None,
        subject=subject,
        attested=attested,
        log_proof=_read(log_proof, MAX_LOG_PROOF_BYTES + 1) if log_proof else None,
    )


def print_report(report: CertificateReport, as_json: bool) -> None:
    """The report on standard output."""
    if as_json:
        print_json(report_json(report))
    else:
        typer.echo(report_text(report))


def report_text(report: CertificateReport) -> str:
    """One line a check: name, verdict, code and what was found."""
    lines = [
        f"{item.name:<11} {item.verdict:<8} {item.code}: {item.detail}" for item in report.checks
    ]
    if CheckCode.SELF_ASSERTED in {item.code for item in report.checks}:
        lines.append("signer: self-asserted")
    return "\n".join(lines)


def report_json(report: CertificateReport) -> dict[str, object]:
    """The report for scripts."""
    return {
        "kind": "certificate",
        "exit_code": report.exit_code,
        "checks": [
            {
                "check": item.name,
                "verdict": item.verdict,
                "code": item.code,
                "detail": item.detail,
            }
            for item in report.checks
        ],
        "statement": msgspec.to_builtins(report.statement),
    }


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ErasureError(f"{path} cannot be written: {error.strerror}") from None


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise CertificateFormatError(f"{path} cannot be read: {error.strerror}") from None
