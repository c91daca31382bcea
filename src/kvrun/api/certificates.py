"""Certificates for somebody: as they are, checked, and as pages. Routes and pages use these."""

from __future__ import annotations

import base64
import re
from hashlib import sha256

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission
from kvrun.api.services import Services
from kvrun.erasure.check import check_certificate
from kvrun.erasure.errors import CertificateFormatError, ErasureError
from kvrun.erasure.report import CertificateReport
from kvrun.erasure.trust import TrustAnchor, parse_anchor
from kvrun.erasure.view_html import certificate_html
from kvrun.errors import KvrunError
from kvrun.launch.trust import own_anchor

_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class PdfUnavailableError(KvrunError):
    """The library that makes PDF files is not installed."""

    exit_code = 3
    status = 501


class NoAnchorError(KvrunError):
    """The deployment never started, so there is no key to hand out."""

    exit_code = 3
    status = 409


def read(services: Services, actor: Actor, deployment_id: str, certificate_id: str) -> bytes:
    """A certificate's bytes. Raises NotFoundError, ForbiddenError or ObjectMissingError."""
    found = services.find(actor, Permission.CERTIFICATES, deployment_id)
    return services.storage.certificate(found.id, certificate_id)


def checked(
    services: Services, actor: Actor, deployment_id: str, certificate_id: str
) -> CertificateReport:
    """A certificate checked with the deployment's own keys.

    Raises as ``read`` does, and CertificateFormatError where nothing can be read from it.
    """
    data = read(services, actor, deployment_id, certificate_id)
    report = check_certificate(
        data, anchor=_own_anchor(services, deployment_id), now=services.now()
    )
    if report.statement is None:
        raise CertificateFormatError(
            "the certificate cannot be read", hint="`kvrun verify` says why."
        )
    return report


def anchor(services: Services, actor: Actor, deployment_id: str) -> bytes:
    """The deployment's trust anchor. Raises NoAnchorError where it has no certificate key yet."""
    found = services.find(actor, Permission.VIEW, deployment_id)
    try:
        return own_anchor(services.deployments.config_of(found.id))
    except ErasureError:
        raise NoAnchorError(
            "the deployment has no certificate key yet", hint="It is made at its first start."
        ) from None


def as_html(report: CertificateReport, *, now: float) -> bytes:
    """The page of a checked certificate."""
    return certificate_html(report, now=now)


def as_pdf(report: CertificateReport, *, now: float) -> bytes:
    """The PDF of a checked certificate. Raises PdfUnavailableError."""
    try:
        from kvrun.erasure.view_pdf import certificate_pdf
    except (ImportError, ErasureError):
        raise PdfUnavailableError(
            "PDF files cannot be made here",
            hint='Install them with pip install "kvrun[pdf]", or print the page.',
        ) from None
    return certificate_pdf(report, now=now)


def style_policy(page: bytes) -> str:
    """The policy of a certificate's page: its own style, known by its hash, and nothing else."""
    digests = [base64.b64encode(sha256(text).digest()).decode() for text in _STYLE.findall(page)]
    styles = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; style-src {styles}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def attachment(name: str) -> dict[str, str]:
    """The header that has a browser save a file under a harmless name."""
    return {"Content-Disposition": f'attachment; filename="{_UNSAFE.sub("_", name)[:120]}"'}


def _own_anchor(services: Services, deployment_id: str) -> TrustAnchor | None:
    try:
        return parse_anchor(own_anchor(services.deployments.config_of(deployment_id)))
    except ErasureError:
        return None
