"""One round of the collector: every log, the counts, certificates, and what is too old to keep."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvrun.control.alerts import AlertKind
from kvrun.control.collector import Collector, CollectOutcome, CollectReport
from kvrun.control.counters import Counting
from kvrun.control.plane import ControlPlane
from kvrun.control.reconcile import Finding, Sample
from kvrun.control.retention import Pruned, Retention
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError

_PRUNE_EVERY_S = 3600.0


class CertificatesReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many certificates were stored now, and what was wrong with others, in words."""

    stored: int = 0
    problems: list[str] = []


class RoundReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one round did."""

    logs: list[CollectReport]
    findings: list[Finding] = []
    certificates: CertificatesReport = CertificatesReport()
    pruned: list[Pruned] = []


def run_round(
    plane: ControlPlane, *, reason: str, count: Callable[[], Sample] | None = None
) -> RoundReport:
    """Collect, reconcile, store and prove certificates, and prune, once, alone on the control
    plane's folder.

    ``count`` reads the counters of engine and gateway; without it nothing is compared.

    Raises KvrunError where the control plane itself cannot work.
    """
    with plane.hold():
        collector = plane.collector()
        logs, findings = [], []
        for target in plane.targets():
            counting = Counting(plane, count) if count else None
            report = collector.collect(target, reason=reason)
            logs.append(report)
            if counting is not None and report.outcome in _READ:
                findings += counting.compare(report)
        return RoundReport(
            logs=logs,
            findings=findings,
            certificates=_store_certificates(plane),
            pruned=_prune(plane, collector),
        )


def _store_certificates(plane: ControlPlane) -> CertificatesReport:
    shelf, deployment = plane.certificates(), plane.config.deployment
    done = shelf.take(plane.archive, plane.now)
    problems = [problem.detail for problem in done.problems]
    try:
        shelf.prove(plane.archive, lambda digests: plane.journal.certify(deployment.name, digests))
    except (KvrunError, OSError) as error:  # the next round tries again
        problems.append(f"certificates got no proof of the control plane's log: {error}")
    whose = (deployment.workspace, deployment.name)
    logs = (item for item in plane.memory.all() if (item.workspace, item.deployment) == whose)
    log = next(logs, None)
    if log is not None:
        for problem in done.problems:
            plane.alarm.warn(
                AlertKind.STORED_DIFFERS, log, problem.detail, problem.files, about=problem.name
            )
    return CertificatesReport(stored=done.stored, problems=problems)


def _prune(plane: ControlPlane, collector: Collector) -> list[Pruned]:
    """Prune every log, once in a while: it lists what Storage holds, which costs something."""
    noted = plane.folder / "pruned-at"
    last = float(noted.read_text()) if noted.exists() else 0.0
    if 0 <= plane.now() - last < _PRUNE_EVERY_S:
        return []
    retention = Retention(
        collector.storage, collector.memory, collector.journal, collector.cosigner, plane.now
    )
    days = plane.config.audit.retention_days
    done = [retention.prune(item, keep_days=days) for item in plane.memory.all()]
    replace_private_file(noted, f"{plane.now()}\n".encode())
    return [item for item in done if item is not None]


_READ = (CollectOutcome.COLLECTED, CollectOutcome.UNCHANGED)
