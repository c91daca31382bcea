"""Check a bundle offline, on a machine that has never seen what it is about.

Without a trust anchor everything is checked with the keys in the bundle itself: then it is shown to
be whole and consistent, and its signer is self-asserted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from kvrun.audit.verdict import Verdict
from kvrun.config.layout import folder_name
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.trust import MAX_ANCHOR_BYTES, TrustAnchor, parse_anchor, raw_key
from kvrun.evidence.archive import Archive
from kvrun.evidence.check_configuration import check_configuration
from kvrun.evidence.check_lists import ListChecks
from kvrun.evidence.check_logs import LogChecks
from kvrun.evidence.check_policies import check_policies
from kvrun.evidence.container import first_difference
from kvrun.evidence.errors import BundleFormatError, EvidenceError
from kvrun.evidence.log_trust import LogTrust
from kvrun.evidence.manifest import (
    ANCHOR_NAME,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    parse_manifest,
)
from kvrun.evidence.period import Period, parse_period
from kvrun.evidence.populations import Population
from kvrun.evidence.report import BundleCheck, BundleReport, CheckResult, Findings
from kvrun.evidence.results import result_checks
from kvrun.keys.signing import KeyPurpose

OnCheck = Callable[[BundleCheck], None]


def check_bundle(
    path: Path,
    *,
    anchor: TrustAnchor | None,
    now: float,
    on_check: OnCheck | None = None,
) -> BundleReport:
    """Check the bundle in a file. ``now`` in seconds since 1970; memory is flat.

    Raises BundleFormatError only where the file cannot be opened.
    """
    checks = _Checks(anchor, now, on_check or (lambda _: None))
    try:
        with Archive(path) as archive:
            checks.run(archive)
    except BundleFormatError as error:
        if not path.is_file():
            raise
        checks.say(
            CheckResult(
                check=BundleCheck.CONTAINER,
                verdict=Verdict.FAIL,
                detail=error.message,
                named=(error.name or path.name,),
            )
        )
    return BundleReport(tuple(checks.results), anchor is not None)


class _Checks:
    def __init__(self, anchor: TrustAnchor | None, now: float, on_check: OnCheck) -> None:
        self.anchor, self.now, self._on_check = anchor, now, on_check
        self.results: list[CheckResult] = []

    def say(self, result: CheckResult) -> None:
        self.results.append(result)

    def run(self, archive: Archive) -> None:
        self._on_check(BundleCheck.MANIFEST)
        try:
            manifest = parse_manifest(archive.read(MANIFEST_NAME, MAX_MANIFEST_BYTES))
            stated = manifest.statement
            period = parse_period(stated.period.first, stated.period.end)
        except EvidenceError as error:
            self.say(
                CheckResult(
                    check=BundleCheck.MANIFEST,
                    verdict=Verdict.FAIL,
                    detail=error.message,
                    named=(MANIFEST_NAME,),
                )
            )
            return
        self._container(archive, period)
        self._manifest(manifest)
        self._files(archive, manifest)
        self._signer(manifest)
        keys = self.anchor or self._own_anchor(archive)
        if keys is None:
            return
        folders = {f"deployments/{folder_name(name)}": name for name in stated.scope.deployments}
        logs = LogChecks(archive, LogTrust(keys), stated, period, folders)
        for check, ask in (
            (BundleCheck.LOGS, logs.segments_listed),
            (BundleCheck.SEGMENTS, logs.segments_whole),
            (BundleCheck.SAMPLE, logs.sample),
            (BundleCheck.JOURNALS, logs.journals),
        ):
            self._ask(check, ask)
        lists = ListChecks(
            archive,
            self.anchor,
            period,
            folders,
            logs.logs,
            logs.proven_rows,
            logs.proven_logs,
            self.now,
        )
        for check, ask in (
            (BundleCheck.CERTIFICATES, lists.certificates_valid),
            (BundleCheck.RESULTS, result_checks(archive, self.anchor, period).check),
            (
                BundleCheck.POLICIES,
                lambda: check_policies(archive, folders, lists.rows(Population.LOG_EVENTS)),
            ),
            (
                BundleCheck.CONFIGURATION,
                lambda: check_configuration(
                    archive,
                    period,
                    stated.scope.deployments,
                    lists.rows(Population.DEPLOYMENT_CHANGES),
                ),
            ),
            (BundleCheck.POPULATIONS, lists.populations),
            (BundleCheck.CONTROLS, lists.controls),
        ):
            self._ask(check, ask)

    def _ask(self, check: BundleCheck, ask: Callable[[], CheckResult]) -> None:
        self._on_check(check)
        try:
            self.say(ask())
        except BundleFormatError as error:
            found = Findings(check)
            found.fail(error.name, error.message)
            self.say(found.result(""))

    def _container(self, archive: Archive, period: Period) -> None:
        self._on_check(BundleCheck.CONTAINER)
        found = Findings(BundleCheck.CONTAINER)
        different = first_difference(archive.file, archive.placed, period.end)
        if different is not None:
            name = different or archive.path.name
            found.fail(name, "the archive around it is not the one that was made")
        self.say(found.result(f"{len(archive.placed)} files, stored as the format says"))

    def _manifest(self, manifest: Manifest) -> None:
        found = Findings(BundleCheck.MANIFEST)
        if not manifest.signed:
            found.fail(MANIFEST_NAME, "its signature is not the one of this statement by its key")
        stated = manifest.statement
        what = f"{stated.scope.workspace}, {stated.period.first} to {stated.period.end}"
        self.say(found.result(f"{what}, signed by key {manifest.key_id}"))

    def _files(self, archive: Archive, manifest: Manifest) -> None:
        self._on_check(BundleCheck.FILES)
        found = Findings(BundleCheck.FILES)
        stated = {item.name: item for item in manifest.files}
        for name in stated:
            if not archive.has(name):
                found.fail(name, "is missing")
        for name in archive.names:
            if name != MANIFEST_NAME and name not in stated:
                found.fail(name, "was added: the manifest does not know it")
        size = 0
        for name in archive.names:
            item = stated.get(name)
            if item is not None and archive.size_of(name) != item.annotations.size_bytes:
                found.fail(name, "has another size than the manifest says")
                continue
            digest, crc = sha256(), 0
            try:
                for piece in archive.pieces(name):
                    digest.update(piece)
                    crc, size = zlib.crc32(piece, crc), size + len(piece)
            except BundleFormatError as error:
                found.fail(name, error.message)
                continue
            if item is not None and digest.hexdigest() != item.digest.sha256:
                found.fail(name, "was changed: its digest is not the manifest's")
            elif crc != archive.crc_of(name):
                found.fail(name, "the archive's checksum of it was changed")
        self.say(found.result(f"{len(stated)} files as the manifest states, {size:,} bytes"))

    def _signer(self, manifest: Manifest) -> None:
        found = Findings(BundleCheck.SIGNER)
        name = f"key {manifest.key_id}"
        if self.anchor is None:
            what = "signer: self-asserted; give the operator's trust anchor (--trust)"
            self.say(found.result(what, verdict=Verdict.UNKNOWN))
            return
        known = [
            key
            for key in self.anchor.keys
            if key.purpose == KeyPurpose.EVIDENCE.value and raw_key(key) == manifest.public_key
        ]
        if not known:
            found.fail(MANIFEST_NAME, f"{name} is not an evidence key of the trust anchor")
        elif known[0].revoked_at is not None:
            found.fail(MANIFEST_NAME, f"{name} is revoked; have the bundle made again")
        self.say(found.result(f"{name} is an evidence key of the trust anchor"))

    def _own_anchor(self, archive: Archive) -> TrustAnchor | None:
        try:
            return parse_anchor(archive.read(ANCHOR_NAME, MAX_ANCHOR_BYTES))
        except (BundleFormatError, CertificateFormatError) as error:
            found = Findings(BundleCheck.LOGS)
            found.fail(ANCHOR_NAME, error.message)
            self.say(found.result(""))
            return None
