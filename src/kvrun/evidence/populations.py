"""The lists that auditors draw their own samples from, as CSV (RFC 4180). Pure.

Each list has a fixed header. Rows stand in the order of their deployment and then of their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from kvrun.audit.decisions import DecisionCount
from kvrun.audit.export import csv_line as _csv_line
from kvrun.audit.record import Event, Record, format_time
from kvrun.audit.tally import EventCount
from kvrun.control.alerts import Alert
from kvrun.deployments.model import DeploymentSpec
from kvrun.erasure.certificate import ErasureStatement, predicate_type
from kvrun.erasure.job import Job, JobState
from kvrun.evidence.period import Period


class Population(StrEnum):
    """One list; its file is ``populations/<value>.csv``."""

    ERASURE_REQUESTS = "erasure_requests"
    ACCESS_CHANGES = "access_changes"
    KEY_ROTATIONS = "key_rotations"
    ALERTS = "alerts"
    POLICY_REVISIONS = "policy_revisions"
    DEPLOYMENTS = "deployments"
    DEPLOYMENT_CHANGES = "deployment_changes"
    INCIDENTS = "incidents"
    LOG_EVENTS = "log_events"
    POLICY_DECISIONS = "policy_decisions"

    @property
    def file(self) -> str:
        """Its name in the bundle."""
        return f"populations/{self.value}.csv"


_RECORD = ("at", "deployment", "log", "seq", "event", "outcome")
COLUMNS: Mapping[Population, tuple[str, ...]] = {
    Population.ERASURE_REQUESTS: (
        "requested_at",
        "completed_at",
        "certified_at",
        "deployment",
        "request_id",
        "kind",
        "requester",
        "reference",
        "legal_basis",
        "document",
        "claim_class",
        "keys_destroyed",
        "certificate_id",
    ),
    Population.ACCESS_CHANGES: (*_RECORD, "workspace", "what"),
    Population.KEY_ROTATIONS: (*_RECORD, "key_id", "what"),
    Population.ALERTS: (
        "raised_at",
        "acknowledged_at",
        "deployment",
        "id",
        "kind",
        "log",
        "detail",
        "stops_collection",
        "reason",
    ),
    Population.POLICY_REVISIONS: (*_RECORD, "policy_revision", "what"),
    Population.DEPLOYMENTS: (
        "created_at",
        "deleted_at",
        "id",
        "name",
        "engine",
        "model",
        "launcher",
        "multi_tenant",
        "stateless",
        "context_window",
        "memory_bytes",
        "disk_bytes",
    ),
    Population.DEPLOYMENT_CHANGES: (*_RECORD, "workspace", "what"),
    Population.INCIDENTS: (*_RECORD, "lost", "what"),
    Population.LOG_EVENTS: (
        "day",
        "deployment",
        "log",
        "event",
        "outcome",
        "policy_revision",
        "records",
    ),
    Population.POLICY_DECISIONS: (
        "day",
        "deployment",
        "log",
        "policy_revision",
        "rule",
        "why",
        "tier",
        "outcome",
        "placements",
        "records",
    ),
}
MEANING: Mapping[Population, str] = {
    Population.ERASURE_REQUESTS: "Requests to erase that were open in the period or certified in "
    "it, with the times at which they were asked, keys were destroyed, and certified.",
    Population.ACCESS_CHANGES: "Sign-ins, changes of members, roles and API keys, and who read "
    "logs or asked whom a pseudonym stands for.",
    Population.KEY_ROTATIONS: "Replaced epoch, root and claim keys, and signing keys of logs. "
    "Every signing key stands with its time in keys/trust-anchor.json.",
    Population.ALERTS: "Alerts that were raised or acknowledged in the period, with the reason.",
    Population.POLICY_REVISIONS: "Residency policies that were put in force or refused.",
    Population.DEPLOYMENTS: "Deployments that existed in the period.",
    Population.DEPLOYMENT_CHANGES: "Deployments made, started, stopped and deleted, and who "
    "asked for what before it was done.",
    Population.INCIDENTS: "Blocks that did not open, gaps, prunings and what became of alerts.",
    Population.LOG_EVENTS: "How many records the logs have of each day, event, outcome and policy.",
    Population.POLICY_DECISIONS: "How many placements each rule of a residency policy refused on a "
    "day, or would have refused (outcome ok: the policy only warned).",
}


def header(population: Population) -> str:
    """The list's first line."""
    return csv_line(COLUMNS[population])


def population_of(event: Event) -> Population | None:
    """The list that a record of this event stands in, if one does."""
    return _LISTS.get(event)


def record_row(population: Population, record: Record, deployment: str) -> str:
    """A record as a line of its list."""
    common = (
        record.ts,
        deployment,
        record.log,
        record.seq,
        record.event.value,
        record.outcome.value,
    )
    more: Sequence[object]
    match population:
        case Population.KEY_ROTATIONS:
            more = (record.key_id, record.reason)
        case Population.POLICY_REVISIONS:
            more = (record.policy_revision, record.reason)
        case Population.INCIDENTS:
            more = (record.lost, record.reason)
        case _:
            more = (record.workspace, record.reason)
    return csv_line((*common, *more))


def certificate_row(statement: ErasureStatement, deployment: str, period: Period) -> str:
    """A certified request; what happened after the period is left out of it."""
    request = statement.request
    certified = period.until > statement.issued_at
    done = next((step.at for step in statement.steps if step.name in _DONE), "")
    return csv_line(
        (
            request.requested_at,
            done if done < period.until else "",
            statement.issued_at if certified else "",
            deployment,
            request.id,
            request.kind.value,
            request.requester,
            request.reference,
            request.legal_basis,
            predicate_type(statement).split("/")[-2] if certified else "",
            statement.claim_class.value if statement.claim_class and certified else "",
            len(statement.keys) if certified else "",
            statement.id if certified else "",
        )
    )


def job_row(job: Job, deployment: str, period: Period) -> str:
    """A request that has no certificate yet."""
    done = next((step.at for step in job.steps if step.name in _DONE), "")
    return csv_line(
        (
            format_time(job.requested_at),
            done if done < period.until else "",
            "",
            deployment,
            job.id,
            job.kind.value,
            job.requester,
            job.reference,
            job.legal_basis,
            *("",) * 4,
        )
    )


def alert_row(alert: Alert, deployment: str, period: Period) -> str | None:
    """An alert that was raised or acknowledged in the period, as it stood at its end."""
    raised = format_time(alert.raised_at)
    settled = format_time(alert.acknowledged_at) if alert.acknowledged_at is not None else ""
    if settled >= period.until:
        settled = ""
    if not period.has(raised) and not period.has(settled):
        return None
    return csv_line(
        (
            raised,
            settled,
            deployment,
            alert.id,
            alert.kind.value,
            alert.log,
            alert.detail,
            _yes(alert.stops),
            alert.acknowledged_because if settled else "",
        )
    )


def deployment_row(
    deployment_id: str,
    spec: DeploymentSpec,
    launcher: str,
    created_at: float,
    deleted_at: float | None,
    period: Period,
) -> str | None:
    """A deployment that existed in the period. Times in seconds since 1970, 0 where unknown."""
    created = format_time(created_at) if created_at else ""
    deleted = format_time(deleted_at) if deleted_at is not None else ""
    if created >= period.until or (deleted and deleted < period.since):
        return None
    return csv_line(
        (
            created,
            deleted if deleted < period.until else "",
            deployment_id,
            spec.name,
            spec.engine,
            spec.model,
            launcher,
            _yes(spec.multi_tenant),
            _yes(spec.stateless),
            spec.context_window or "",
            spec.memory_bytes,
            spec.disk_bytes,
        )
    )


def count_rows(counts: Iterable[EventCount], deployment: str, log: str) -> list[str]:
    """Counts of one log."""
    return [
        csv_line(
            (
                item.day,
                deployment,
                log,
                item.event,
                item.outcome,
                item.policy_revision,
                item.records,
            )
        )
        for item in counts
    ]


def decision_rows(counts: Iterable[DecisionCount], deployment: str, log: str) -> list[str]:
    """What policies refused, by one log."""
    return [
        csv_line(
            (
                item.day,
                deployment,
                log,
                item.policy_revision,
                item.rule,
                item.why,
                item.tier,
                item.outcome,
                item.placements,
                item.records,
            )
        )
        for item in counts
    ]


def csv_line(values: Iterable[object]) -> str:
    """One line of a list, whatever people wrote: a line break in a text becomes a space."""
    return _csv_line(
        " ".join(value.split()) if isinstance(value, str) and not value.isprintable() else value
        for value in values
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_DONE = (JobState.DESTROYED.value,)
_LISTS = {
    Event.SIGNED_IN: Population.ACCESS_CHANGES,
    Event.ROLE_CHANGED: Population.ACCESS_CHANGES,
    Event.LOG_READ: Population.ACCESS_CHANGES,
    Event.WHOIS: Population.ACCESS_CHANGES,
    Event.KEY_ROTATED: Population.KEY_ROTATIONS,
    Event.POLICY_ACTIVATED: Population.POLICY_REVISIONS,
    Event.POLICY_REJECTED: Population.POLICY_REVISIONS,
    Event.DEPLOYMENT_CREATED: Population.DEPLOYMENT_CHANGES,
    Event.DEPLOYMENT_STARTED: Population.DEPLOYMENT_CHANGES,
    Event.DEPLOYMENT_STOPPED: Population.DEPLOYMENT_CHANGES,
    Event.DEPLOYMENT_DELETED: Population.DEPLOYMENT_CHANGES,
    Event.DEPLOYMENT_ASKED: Population.DEPLOYMENT_CHANGES,
    Event.INTEGRITY_FAILURE: Population.INCIDENTS,
    Event.GAP: Population.INCIDENTS,
    Event.INSTANCE_RETIRED: Population.INCIDENTS,
    Event.LOG_ALERT: Population.INCIDENTS,
    Event.ALERT_ACKNOWLEDGED: Population.INCIDENTS,
    Event.LOG_PRUNED: Population.INCIDENTS,
}
