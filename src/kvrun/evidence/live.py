"""The controls as they stand now, from tallies and records here: a page reads no Storage."""

from __future__ import annotations

from collections import Counter

from kvrun.control.tallies import Tallies
from kvrun.evidence.controls import ControlMap, Totals, control_map
from kvrun.evidence.logs import SiteLogs
from kvrun.evidence.period import Period
from kvrun.evidence.populations import deployment_row
from kvrun.evidence.results import evaluations
from kvrun.evidence.scope import Scope, Site

_MOST_OPEN_BYTES = 16 << 20


def live_controls(scope: Scope, period: Period) -> ControlMap:
    """The controls with their states by what is tallied of the period.

    A long open segment, segments that an earlier version stored, and isolation self-tests are not
    counted: a bundle may have more. Raises KvrunError.
    """
    counted: Counter[str] = Counter()
    certificates = deployments = 0
    for site in scope.sites:
        deployments += _existed(site, period)
        certificates += sum(period.has(item.issued_at) for item in site.plane.certificates().find())
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
    totals = Totals(
        certificates=certificates,
        deployments=deployments,
        denied=counted["denied"],
        evaluations=len(evaluations(scope, period)),
        keys_created=counted["key_created"],
        keys_destroyed=counted["key_destroyed"],
        records=sum(counted.values()),
        sealed=counted["sealed"],
    )
    return control_map(totals, lambda _: True)


def _existed(site: Site, period: Period) -> bool:
    row = deployment_row(
        site.id, site.spec, site.launcher, site.created_at, site.deleted_at, period
    )
    return row is not None
