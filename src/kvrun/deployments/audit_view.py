"""What a deployment's page shows of its audit log: verdict, records, segments, collecting now."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.audit.record import Record
from kvrun.control.rounds import RoundReport
from kvrun.deployments.service import Deployments


@dataclass(frozen=True, slots=True)
class Banner:
    """The verdict on one log. ``newer_records`` is None where the instance cannot be asked.

    ``witnesses`` says up to which record each confirmed the log; none means that nobody else
    remembers it. ``alert`` is the id of the alert that stops its collection.
    """

    log: str
    verified_up_to: int
    at: float | None
    newer_records: int | None
    key_id: str
    witnesses: dict[str, int]
    alert: str = ""
    retired: str = ""

    @property
    def text(self) -> str:
        """The banner as a sentence."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A file of the collected log that can be downloaded; records from ``first`` to before ``end``."""

    name: str
    first: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AuditView:
    """The tab about the log. ``produces`` says what the engine can and cannot produce."""

    banners: tuple[Banner, ...]
    segments: tuple[SegmentRow, ...]
    produces: str
    collectable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records are wanted; empty means any. Times in seconds since 1970."""

    event: str = ""
    outcome: str = ""
    tenant_ref: str = ""
    session_ref: str = ""
    request_id: str = ""
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records, newest first. ``cursor`` goes on with older ones; empty at the log's beginning.

    A page may be short, or empty, and still have a cursor: a look-up reads so much at a time.
    """

    records: tuple[Record, ...]
    cursor: str


class AuditViews:
    """Reads collected logs. What is shown was verified when it was collected."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def audit(self, deployment_id: str) -> AuditView:
        """Verdicts and segments."""
        raise NotImplementedError

    def records(
        self,
        deployment_id: str,
        wanted: RecordFilter | None = None,
        cursor: str = "",
        *,
        limit: int = 100,
    ) -> RecordPage:
        """Collected records, newest first."""
        raise NotImplementedError

    def collect_now(self, deployment_id: str) -> RoundReport:
        """Collect, verify and store what is new, and say what came of it."""
        raise NotImplementedError

    def segment(self, deployment_id: str, name: str) -> bytes:
        """One file of the collected log, as ``audit`` lists them. Raises ObjectMissingError."""
        raise NotImplementedError
