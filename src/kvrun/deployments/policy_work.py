"""Working with a deployment's policy: compare revisions, simulate one, see what was not allowed.

The same functions as the command line's, over the deployment's own files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvrun.audit.cursor import read_recent
from kvrun.audit.record import Record
from kvrun.config import KvrunConfig
from kvrun.policy.compare import Comparison, compare
from kvrun.policy.errors import PolicyError
from kvrun.policy.named import find_revision, known_revisions
from kvrun.policy.recorded import marks_of_violations, simulated, violated
from kvrun.policy.setup import believed_facts, folder_of
from kvrun.policy.simulate import Simulation
from kvrun.policy.violations import Violations

__all__ = [
    "PolicyBusyError",
    "PolicyNotConnectedError",
    "ask_for_look",
    "compared",
    "known_revisions",
    "misplaced_or_denied",
    "simulation",
]

MAX_HOURS = 24 * 31
MAX_RECORDS = 500_000
"""So many of the newest records are read for one answer."""
_HOUR_S = 3600.0
_AT_ONCE = 2
_working = threading.BoundedSemaphore(_AT_ONCE)


class PolicyBusyError(PolicyError):
    """Others are being answered; each answer reads much."""

    exit_code = 3
    status = 409


class PolicyNotConnectedError(PolicyError):
    """There is no repository to look at."""

    exit_code = 3
    status = 409


@dataclass(frozen=True, slots=True)
class SimulatedRevision:
    """What a revision would have decided. ``complete``: every record of the time was looked at."""

    revision: str
    hours: int
    complete: bool
    simulation: Simulation


@dataclass(frozen=True, slots=True)
class PolicyViolations:
    """What was not allowed. ``complete``: every record of the time was looked at."""

    hours: int
    complete: bool
    found: Violations


def compared(config: KvrunConfig, before: str, after: str) -> Comparison:
    """What differs between two revisions, by name. Raises PolicyError."""
    with _One():
        old, new = find_revision(config, before), find_revision(config, after)
        return compare(old, new, believed_facts(config), folder_of(config).tenants())


def simulation(config: KvrunConfig, name: str, hours: int, now: float) -> SimulatedRevision:
    """What a revision would have decided about what was placed in the last hours.

    Raises PolicyError, AuditRecordError.
    """
    since = now - hours * _HOUR_S
    with _One():
        found = find_revision(config, name).revision
        records, complete = _records(config, since)
        return SimulatedRevision(
            found.id, hours, complete, simulated(config, found, records, since)
        )


def misplaced_or_denied(config: KvrunConfig, hours: int, now: float) -> PolicyViolations:
    """What the policy refused in the last hours, and what is where it may not be now.

    Raises PolicyError, AuditRecordError.
    """
    since = now - hours * _HOUR_S
    with _One():
        # What is there now may have come at any time.
        records, complete = _records(config, 0.0, marks_of_violations(config))
        return PolicyViolations(hours, complete, violated(config, records, since, now))


def ask_for_look(config: KvrunConfig) -> None:
    """Have the repository looked at soon. Raises PolicyError where none is connected."""
    if config.residency.repository is None:
        raise PolicyNotConnectedError(
            "no repository is connected: builtin-1 applies",
            hint="Set residency.repository in the deployment's kvrun.toml.",
        )
    folder_of(config).ask_for_look()


def _records(
    config: KvrunConfig, since: float, marks: Sequence[bytes] = ()
) -> tuple[Iterator[Record], bool]:
    if not config.layout.audit.is_dir():
        return iter(()), True
    return read_recent(config.layout.audit, since, at_most=MAX_RECORDS, marks=marks)


class _One:
    """One of the few that are worked on at a time."""

    def __enter__(self) -> None:
        if not _working.acquire(timeout=1.0):
            raise PolicyBusyError("other questions about policies are being answered; ask again")

    def __exit__(self, *_: object) -> None:
        _working.release()
