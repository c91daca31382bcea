"""The controls as they stand now, from tallies, records and certificates: no segment is read."""

from __future__ import annotations

import logging
from collections import Counter

from kvrun.config.layout import storage_prefix
from kvrun.control.tallies import Tallies
from kvrun.evidence.controls import ControlMap, Totals, control_map
from kvrun.evidence.logs import SiteLogs
from kvrun.evidence.period import Period
from kvrun.evidence.populations import deployment_row
from kvrun.evidence.results import evaluations
from kvrun.evidence.scope import Scope, Site
from kvrun.isolation.report import FOLDER_NAME, day_of
from kvrun.storage import Patience, Storage, StorageError

_MOST_OPEN_BYTES = 16 << 20
_ASKING = Patience(request_s=5.0, connect_s=2.0, retries=1, retry_s=5.0)
_log = logging.getLogger(__name__)


def live_controls(scope: Scope, period: Period) -> ControlMap:
    """The controls with their states by what is tallied of the period.

    A long open segment and segments that an earlier version stored are not counted: a bundle may
    have more. Where Storage cannot be used, the controls that are judged by what lies there are
    not known. Raises KvrunError.
    """
    counted: Counter[str] = Counter()
    for site in scope.sites:
        logs = SiteLogs(site, period)
        for log in logs.remembered():
            tallies = Tallies(site.plane.memory.tallies)
            for tally in tallies.kept(log.log, log.generation):
                for count in tally.counts:
                    if period.has(count.day):
                        counted[count.event] += count.records
            for count in logs.open_counts(log, most_bytes=_MOST_OPEN_BYTES):
                if period.has(count.day):
                    counted[count.event] += count.records
    certificates = isolation_tests = 0
    unknown: frozenset[str] = frozenset()
    try:
        certificates, isolation_tests = _in_storage(scope, period)
    except StorageError as error:
        _log.warning("what Storage has for the controls is not known now: %s", error.message)
        unknown = frozenset({"certificates", "isolation_tests"})
    totals = Totals(
        certificates=certificates,
        deployments=sum(_existed(site, period) for site in scope.sites),
        denied=counted["denied"],
        evaluations=len(evaluations(scope, period)),
        isolation_tests=isolation_tests,
        keys_created=counted["key_created"],
        keys_destroyed=counted["key_destroyed"],
        records=sum(counted.values()),
        sealed=counted["sealed"],
    )
    return control_map(totals, lambda _: True, unknown=unknown)


def _in_storage(scope: Scope, period: Period) -> tuple[int, int]:
    """How many certificates and isolation self-tests of the period there are.

    The first deployment whose Storage cannot be used ends it: what is left does not make the whole
    known, and many would wait for the same store. Raises StorageError.
    """
    certificates = isolation_tests = 0
    for site in scope.sites:
        storage = site.plane.storage(_ASKING)
        found = site.plane.certificates(storage).find()
        certificates += sum(period.has(item.issued_at) for item in found)
        isolation_tests += _self_tests(site, storage, period)
    return certificates, isolation_tests


def _self_tests(site: Site, storage: Storage, period: Period) -> int:
    """How many there were in the period, by the names of their results."""
    deployment = site.config.deployment
    folder = f"{storage_prefix(deployment.workspace, deployment.name)}/{FOLDER_NAME}"
    return sum(period.has(day_of(item.name)) for item in storage.list(folder))


def _existed(site: Site, period: Period) -> bool:
    row = deployment_row(
        site.id, site.spec, site.launcher, site.created_at, site.deleted_at, period
    )
    return row is not None
