"""Erasure certificates in a bundle, and the list of requests that they and open jobs make up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kvrun.audit.record import format_time
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.job import Job, JobState, JobStore
from kvrun.evidence.period import Period
from kvrun.evidence.populations import Population, certificate_row, job_row
from kvrun.evidence.scope import Site
from kvrun.evidence.staging import Part


class CertificateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How many certificates of the period there are, how many keys they say were destroyed, and
    how many requests had none at its end. ``unreadable`` are files that are no certificates."""

    certificates: int
    keys_destroyed: int
    open_requests: int
    unreadable: list[str]


@dataclass(frozen=True, slots=True)
class SiteCertificates:
    """The certificates of one deployment: those in Storage, and those not yet stored there."""

    site: Site
    period: Period

    def take(self, part: Part) -> CertificateFacts:
        """Stage those that were issued in the period. Raises KvrunError."""
        certificates = keys = waiting = 0
        certified: set[str] = set()
        unreadable: list[str] = []
        rows: list[tuple[str, str]] = []
        # Jobs first: one that is certified meanwhile is found among the certificates, too.
        later = [
            (job.id, format_time(job.requested_at), job_row(job, self.site.id, self.period))
            for job in self._open_jobs()
        ]
        for certificate_id, data in self._all(certified):
            statement = _statement(data)
            if statement is None or statement.id != certificate_id:
                unreadable.append(certificate_id)
                continue
            request = statement.request
            row = certificate_row(statement, self.site.id, self.period)
            if self.period.has(statement.issued_at):
                part.add(f"{self.site.folder}/certificates/{certificate_id}.json", data)
                certified.add(request.id)
                certificates, keys = certificates + 1, keys + len(statement.keys)
                rows.append((f"{request.requested_at} {certificate_id}", row))
            elif request.requested_at < self.period.until <= statement.issued_at:
                later.append((request.id, request.requested_at, row))
            elif statement.issued_at < self.period.since:
                certified.add(request.id)
        # Of a request that was certified by then, this is an addendum of after the period.
        for request_id, requested, row in later:
            if request_id not in certified:
                certified.add(request_id)
                waiting += 1
                rows.append((f"{requested} {request_id}", row))
        for _, row in sorted(rows):
            part.row(Population.ERASURE_REQUESTS, row)
        return CertificateFacts(
            certificates=certificates,
            keys_destroyed=keys,
            open_requests=waiting,
            unreadable=unreadable,
        )

    def _all(self, certified: set[str]) -> Iterator[tuple[str, bytes]]:
        """Certificates that were not issued before the period; ``certified`` gets the others."""
        shelf, archive = self.site.plane.certificates(), self.site.plane.archive
        stored = {item.id: item for item in shelf.find()}
        for certificate_id in sorted({*stored, *archive.ids()}):
            known = stored.get(certificate_id)
            if known is not None and known.issued_at < self.period.since:
                certified.add(certificate_id)
                continue
            own = archive.get(certificate_id) if known is None else shelf.get(certificate_id)
            yield certificate_id, own or b""

    def _open_jobs(self) -> Iterator[Job]:
        folder = self.site.config.layout.erasure / "jobs"
        for job in JobStore(folder).jobs() if folder.is_dir() else ():
            asked = format_time(job.requested_at) < self.period.until
            if asked and job.state is not JobState.CERTIFIED:
                yield job


def _statement(data: bytes) -> ErasureStatement | None:
    try:
        return decode_statement(payload_of(parse_certificate(data)))
    except CertificateFormatError:
        return None
