"""Making a bundle: gather part by part, list and describe, sign, pack. It can be resumed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvrun import __version__
from kvrun.durable import sync_folder
from kvrun.erasure.certificate import Digest, Software
from kvrun.erasure.trust import fingerprints, parse_anchor
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.certificates import CertificateFacts, SiteCertificates
from kvrun.evidence.configuration import (
    configuration_of,
    decode_configuration,
    encode_configuration,
)
from kvrun.evidence.container import Entry, directory, local_header
from kvrun.evidence.controls import Totals, control_map, encode_controls, file_matcher, with_results
from kvrun.evidence.errors import EvidenceError
from kvrun.evidence.journals import Journal, JournalFacts
from kvrun.evidence.logs import LogFacts, SiteLogs, frames_of
from kvrun.evidence.manifest import (
    ANCHOR_NAME,
    CONFIGURATION_NAME,
    CONTROLS_NAME,
    MANIFEST_NAME,
    MAX_SAMPLE,
    PAGE_NAME,
    SUMMARY_NAME,
    BundleStatement,
    FileSubject,
    Size,
    StatedPeriod,
    StatedSample,
    StatedScope,
    sign_manifest,
)
from kvrun.evidence.page import bundle_page
from kvrun.evidence.period import Period
from kvrun.evidence.policies import take_policies
from kvrun.evidence.populations import Population, alert_row, deployment_row, header
from kvrun.evidence.results import ResultFact, take_results
from kvrun.evidence.sample import Drawn, draw
from kvrun.evidence.scope import Scope, Site
from kvrun.evidence.staging import Part, StagedFile, Staging
from kvrun.evidence.statics import static_files
from kvrun.evidence.summary import Summary, encode_summary
from kvrun.instance.settings_record import read_settings
from kvrun.keys.signing import KeyPurpose, SigningKey, SigningRing


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody wants. ``full``: the segments themselves too, not only their digests."""

    period: Period
    sample: int = 25
    seed: str = "1"
    full: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.sample <= MAX_SAMPLE:
            raise EvidenceError(f"a sample has 0 to {MAX_SAMPLE} records, not {self.sample}")
        if not self.seed.isascii() or not self.seed.isprintable() or len(self.seed) > 100:
            raise EvidenceError("a seed is up to 100 printable ASCII characters")


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is: ``done`` of ``steps``, and what is done now."""

    done: int
    steps: int
    what: str


OnStep = Callable[[Step], None]


class _SiteFacts(msgspec.Struct, frozen=True, kw_only=True):
    logs: list[LogFacts]
    certificates: CertificateFacts
    journal: JournalFacts | None


class _AccessFacts(msgspec.Struct, frozen=True, kw_only=True):
    journal: JournalFacts | None


class _Nothing(msgspec.Struct, frozen=True):
    pass


def export_bundle(
    scope: Scope,
    request: Request,
    output: Path,
    *,
    now: Callable[[], float] = time.time,
    on_step: OnStep | None = None,
    folder: Path | None = None,
) -> Path:
    """Make the bundle in the file ``output``, which must not be there yet; its path.

    ``folder`` holds finished parts until it is made; by default it lies beside ``output``. Called
    again after a crash it goes on with what was finished. Raises EvidenceError, EvidenceBusyError,
    StorageError, AuditError or ErasureError; what was finished stays.
    """
    if output.exists():
        raise EvidenceError(f"{output} is there already", hint="Name another file with -o.")
    staging = Staging(folder or output.with_name(f"{output.name}.parts"))
    with staging.alone():
        _Export(scope, request, staging, now, on_step or (lambda _: None)).run(output)
    staging.remove()
    return output


class _Export:
    def __init__(
        self,
        scope: Scope,
        request: Request,
        staging: Staging,
        now: Callable[[], float],
        on_step: OnStep,
    ) -> None:
        self.scope, self.request, self.staging = scope, request, staging
        self.now, self._on_step = now, on_step
        self.period = request.period
        self._steps, self._done = 2 * len(scope.sites) + 4, 0

    def run(self, output: Path) -> None:
        self._check_folder()
        sites = {site.id: self._site(site) for site in self.scope.sites}
        access = self._access()
        results = self.staging.part("d-results", list[ResultFact], self._results, keep=False)
        drawn = self._draw(sites)
        for site in self.scope.sites:
            self._sample(site, sites[site.id].logs, drawn)
        self._say("lists and pages")
        signer = self._signer()
        self.staging.part(
            "z-lists", _Nothing, lambda part: self._lists(part, sites, signer), keep=False
        )
        self.staging.part(
            "z-pages",
            _Nothing,
            lambda part: self._pages(part, sites, access, results),
            keep=False,
        )
        self._say("packing")
        self._pack(output, signer)
        self._say("done")

    def _check_folder(self) -> None:
        """Parts of another request are not taken for this one's: they go."""
        wanted = repr((self.scope.workspace, sorted(_ids(self.scope)), self.request, __version__))
        path = self.staging.folder / "request"
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            self.staging.clear()
            path.write_text(wanted, encoding="utf-8")

    def _say(self, what: str) -> None:
        self._on_step(Step(self._done, self._steps, what))
        self._done += 1

    def _site(self, site: Site) -> _SiteFacts:
        self._say(f"logs and certificates of {site.spec.name}")
        logs = SiteLogs(site, self.period)
        closed = all(item.stored.ts >= self.period.until for item in logs.remembered())

        def make(part: Part) -> _SiteFacts:
            journal = Journal(
                site.config.layout,
                f"{site.folder}/collector",
                site.id,
                self.period,
                lambda _: True,
            )
            for alert in site.plane.alerts.all():
                row = alert_row(alert, site.id, self.period)
                if row is not None:
                    part.row(Population.ALERTS, row)
            row = deployment_row(
                site.id, site.spec, site.launcher, site.created_at, site.deleted_at, self.period
            )
            if row is not None:
                part.row(Population.DEPLOYMENTS, row)
            taken = logs.take(part, full=self.request.full)
            take_policies(part, site, {name for facts in taken for name in facts.revisions})
            return _SiteFacts(
                logs=taken,
                certificates=SiteCertificates(site, self.period).take(part),
                journal=journal.take(part, self.now),
            )

        return self.staging.part(f"a-{_part_name(site)}", _SiteFacts, make, keep=closed)

    def _access(self) -> JournalFacts | None:
        """The records about people and deployments of the scope, from the control plane's log."""
        self._say("the log of people and deployments")
        scope = self.scope

        def make(part: Part) -> _AccessFacts:
            journal = Journal(
                scope.home_layout,
                "control-plane",
                "",
                self.period,
                lambda record: (
                    record.workspace == scope.workspace_id
                    and record.deployment in ("", scope.deployment_id or record.deployment)
                ),
            )
            return _AccessFacts(journal=journal.take(part, self.now))

        if not scope.workspace_id:
            return None
        return self.staging.part("b-control-plane", _AccessFacts, make, keep=False).journal

    def _results(self, part: Part) -> list[ResultFact]:
        return take_results(part, self.scope, self.period)

    def _draw(self, sites: dict[str, _SiteFacts]) -> list[Drawn]:
        frames = [frame for name, facts in sites.items() for frame in frames_of(name, facts.logs)]
        return draw(frames, self.request.sample, self.request.seed)

    def _sample(self, site: Site, logs: list[LogFacts], drawn: list[Drawn]) -> None:
        self._say(f"sample of {site.spec.name}")
        mine = [item for item in drawn if item.deployment == site.id]

        def make(part: Part) -> _Nothing:
            SiteLogs(site, self.period).sample(part, logs, mine, self.staging)
            return _Nothing()

        self.staging.part(f"c-{_part_name(site)}", _Nothing, make, keep=False)

    def _lists(self, part: Part, sites: dict[str, _SiteFacts], signer: SigningKey) -> _Nothing:
        for population in Population:
            lines = self.staging.rows(population)
            part.add(population.file, _chain(header(population).encode(), lines))
        configuration = [
            configuration_of(
                site,
                sites[site.id].logs,
                read_settings(site.config.layout.settings_record),
                self.period,
            )
            for site in self.scope.sites
        ]
        part.add(CONFIGURATION_NAME, encode_configuration(configuration))
        anchor = scope_anchor(self.scope, signer=signer)
        part.add(ANCHOR_NAME, anchor)
        for name, data in static_files():
            part.add(name, data)
        return _Nothing()

    def _pages(
        self,
        part: Part,
        sites: dict[str, _SiteFacts],
        access: JournalFacts | None,
        results: list[ResultFact],
    ) -> _Nothing:
        rows = {item.value: _lines_of(self.staging.rows(item)) for item in Population}
        names = [file.name for file in self.staging.files() if not _is_page(file.name)]
        counted = totals_of(sites.values(), rows[Population.DEPLOYMENTS.value])
        summary = Summary(
            workspace=self.scope.workspace,
            since=self.period.since,
            until=self.period.until,
            full=self.request.full,
            sample=self.request.sample,
            seed=self.request.seed,
            totals=with_results(counted, names),
            logs=[log for facts in sites.values() for log in facts.logs],
            journals=[
                found
                for found in (*(facts.journal for facts in sites.values()), access)
                if found is not None
            ],
            certificates=[facts.certificates for facts in sites.values()],
            deployments=[(site.id, site.spec.name) for site in self.scope.sites],
            rows=rows,
        )
        controls = control_map(summary.totals, file_matcher(names), full=summary.full)
        part.add(SUMMARY_NAME, encode_summary(summary))
        part.add(CONTROLS_NAME, encode_controls(controls))
        anchor = parse_anchor(b"".join(self.staging.content(ANCHOR_NAME)))
        settings = decode_configuration(b"".join(self.staging.content(CONFIGURATION_NAME)))
        page = bundle_page(
            summary, controls, list(settings.values()), results, fingerprints(anchor), names
        )
        part.add(PAGE_NAME, page)
        return _Nothing()

    def _signer(self) -> SigningKey:
        folder = self.scope.home_layout.control / "signing"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SigningRing(folder, now=self.now).load_or_create(KeyPurpose.EVIDENCE)

    def _pack(self, output: Path, signer: SigningKey) -> None:
        files = self.staging.files()
        statement = BundleStatement(
            full=self.request.full,
            period=StatedPeriod(first=self.period.since, end=self.period.until),
            sample=StatedSample(records=self.request.sample, seed=self.request.seed),
            scope=StatedScope(deployments=sorted(_ids(self.scope)), workspace=self.scope.workspace),
            software=Software(version=__version__),
        )
        subjects = [
            FileSubject(
                annotations=Size(size_bytes=file.size_bytes),
                digest=Digest(sha256=file.sha256),
                name=file.name,
            )
            for file in files
        ]
        manifest = sign_manifest(statement, subjects, signer)
        part = Part(self.staging.folder, "manifest")
        files = sorted([*files, part.add(MANIFEST_NAME, manifest)], key=lambda item: item.name)
        temporary = output.with_name(f".{output.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as archive:
            pack(archive, files, self.staging.content, self.period)
            archive.flush()
            os.fsync(archive.fileno())
        temporary.replace(output)
        sync_folder(output.parent)


def pack(
    archive: BinaryIO,
    files: Iterable[StagedFile],
    content: Callable[[str], Iterator[bytes]],
    period: Period,
) -> None:
    """Write the archive of ``files``, which are in the order of their names."""
    entries = [Entry(file.name, file.crc, file.size_bytes) for file in files]
    for entry in entries:
        archive.write(local_header(entry, period.end))
        written = 0
        for piece in content(entry.name):
            written += archive.write(piece)
        if written != entry.size_bytes:
            raise EvidenceError(f"the staged file {entry.name} was changed")
    for piece in directory(entries, period.end):
        archive.write(piece)


def totals_of(facts: Iterable[_SiteFacts], deployments: int) -> Totals:
    """What was counted in the period; ``deployments``: how many existed in it."""
    found = list(facts)
    logs = [log for site in found for log in site.logs]

    def events(*names: str) -> int:
        return sum(log.counts.get(name, 0) for log in logs for name in names)

    return Totals(
        certificates=sum(site.certificates.certificates for site in found),
        deployments=deployments,
        denied=events("denied"),
        keys_created=events("key_created"),
        keys_destroyed=events("key_destroyed"),
        records=sum(log.records for log in logs),
        sealed=events("sealed"),
    )


def _ids(scope: Scope) -> list[str]:
    return [site.id for site in scope.sites]


def _part_name(site: Site) -> str:
    return site.folder.rpartition("/")[2]


def _is_page(name: str) -> bool:
    return name in (SUMMARY_NAME, CONTROLS_NAME, PAGE_NAME)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _lines_of(pieces: Iterator[bytes]) -> int:
    return sum(piece.count(b"\n") for piece in pieces)
