"""The other daemons of a key service in an erasure: who was told, and what became of it.

They have the same sessions' keys, and engines of their own. An erasure tells each of them, and
waits as it does for its own engines; what one confirms later is in an addendum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from kvrun.audit.record import format_time
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import Job, ToldDaemon
from kvrun.instance.known_engines import process_start
from kvrun.keys.daemon_state import DaemonReport, DaemonState, Pages
from kvrun.keys.errors import KeysError
from kvrun.keys.source import KeySelecting

_replace = msgspec.structs.replace


def page_owners(job: Job) -> list[bytes]:
    """What engines call the pages of the job's sessions."""
    return list(dict.fromkeys(bytes.fromhex(key.owner) for key in job.keys if key.owner))


def with_told(job: Job, told: Iterable[tuple[int, str]], asked_at: str) -> Job:
    """The job with those who were told, by process id and name."""
    known = {daemon.name for daemon in job.daemons}
    new = [
        ToldDaemon(name=name, pid=pid, started=process_start(pid), asked_at=asked_at)
        for pid, name in told
        if name not in known
    ]
    return _replace(job, daemons=[*job.daemons, *new])


def settled(
    keys: KeySelecting, job: Job, pages_within_s: float, now: Callable[[], float]
) -> list[ToldDaemon]:
    """Wait until no other daemon can use the keys, and each spoke of its pages or time is over.

    Raises ErasureError where the key service cannot be asked: nobody knows then who lets go.
    """
    names = [daemon.name for daemon in job.daemons]
    try:
        states = keys.settle(job.id, names, pages_within_s=pages_within_s)
    except KeysError as error:
        raise ErasureError(
            f"the erasure {job.id} waits for the key service, which knows who has the keys:"
            f" {error.message}",
            hint="The daemon goes on with it by itself.",
        ) from error
    return heard(job.daemons, states, format_time(now()))


def looked(keys: KeySelecting, job: Job, asked_at: str) -> list[ToldDaemon]:
    """What those who had not confirmed have confirmed since. Raises KeysError.

    A key service that was started since knows nothing of the erasure: it is asked to tell them.
    """
    names = [daemon.name for daemon in job.daemons if daemon.is_open]
    states = keys.settle(job.id, names, pages_within_s=None)
    if any(state.report is DaemonReport.UNTOLD for state in states):
        keys.destroy([key.key_id for key in job.keys], erasure=job.id, owners=page_owners(job))
    return heard(job.daemons, states, asked_at)


def heard(
    daemons: Sequence[ToldDaemon], states: Sequence[DaemonState], asked_at: str
) -> list[ToldDaemon]:
    """The daemons with what the service says of them."""
    found = {state.name: state for state in states}
    return [
        _heard(daemon, found[daemon.name], asked_at)
        if daemon.is_open and daemon.name in found
        else daemon
        for daemon in daemons
    ]


def _heard(daemon: ToldDaemon, state: DaemonState, asked_at: str) -> ToldDaemon:
    daemon = _replace(daemon, asked_at=asked_at, pages=_more(daemon.pages, state.pages))
    match state.report:
        case DaemonReport.LET_GO:
            return _replace(daemon, let_go=True)
        case DaemonReport.ENDED:
            return _replace(daemon, ended=True)
        case DaemonReport.ABSENT:
            # Of a process that runs it will be heard; what cannot be seen from here may run.
            over = bool(daemon.started) and process_start(daemon.pid) != daemon.started
            return _replace(daemon, ended=over)
    return daemon


def _more(before: Pages | None, now: Pages | None) -> Pages | None:
    """What was zeroed stays zeroed where a daemon is asked again, and counts from nothing."""
    if before is None or now is None:
        return now or before
    return Pages(
        max(before.evicted, now.evicted), max(before.scrubbed, now.scrubbed), now.held, now.notes
    )
