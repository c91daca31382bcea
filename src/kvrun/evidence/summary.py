"""``summary.json``: the bundle in a few numbers. Pure."""

from __future__ import annotations

import msgspec

from kvrun.audit.record import Count
from kvrun.evidence.certificates import CertificateFacts
from kvrun.evidence.controls import Totals
from kvrun.evidence.journals import JournalFacts
from kvrun.evidence.logs import LogFacts

FORMAT = "kvrun-evidence-summary/v1"


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bundle holds. ``deployments`` are ids and names, ``rows`` the lengths of lists."""

    certificates: list[CertificateFacts]
    deployments: list[tuple[str, str]]
    format: str = FORMAT
    full: bool
    journals: list[JournalFacts]
    logs: list[LogFacts]
    rows: dict[str, Count]
    sample: Count
    seed: str
    since: str
    totals: Totals
    until: str
    workspace: str

    @property
    def open_logs(self) -> list[LogFacts]:
        """Logs of which records of the period may be missing."""
        return [log for log in self.logs if not log.closed]


def encode_summary(summary: Summary) -> bytes:
    """The file: indented, with sorted keys."""
    return msgspec.json.format(msgspec.json.encode(summary, order="sorted"), indent=2) + b"\n"
