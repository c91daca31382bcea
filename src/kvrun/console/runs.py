"""Long work that a page follows: it goes on in a thread, and its result is kept for a while."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import ConflictError, NotFoundError
from kvrun.errors import KvrunError

KEPT_S = 30 * 60.0
MAX_RUNS = 200
MAX_UNDER_WAY = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate that was made, and in which deployment's archive it is."""

    id: str
    deployment_id: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. ``openings`` by certificate id: they are kept nowhere else."""

    said: str
    notes: tuple[str, ...] = ()
    certificates: tuple[Certified, ...] = ()
    openings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One piece of work. ``place`` is the id of the deployment or workspace that it is about.

    Times in seconds since 1970, ``ended_at`` 0 while it goes on. ``error`` and ``hint`` are set
    where it failed; ``deletes`` says that it ends the deployment. ``section`` is set for work that
    is no erasure: where its page belongs.
    """

    id: str
    actor_id: str
    place: str
    title: str
    reference: str
    started_at: float
    deletes: bool = False
    section: str = ""
    ended_at: float = 0.0
    result: Result | None = None
    error: str = ""
    hint: str = ""

    @property
    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self.result is not None or bool(self.error)

    def as_it_is(self) -> Run:
        """A copy that stays as it is now: parts of a page made from it do not contradict."""
        return replace(self)

    @property
    def said(self) -> str:
        """What came of it, in a sentence."""
        return self.result.said if self.result else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is to be known."""
        return self.result.notes if self.result else ()

    @property
    def certificates(self) -> tuple[Certified, ...]:
        """The certificates."""
        return self.result.certificates if self.result else ()

    @property
    def openings(self) -> Mapping[str, str]:
        """Openings by certificate id."""
        return self.result.openings if self.result else {}


class Runs:
    """What is under way and what ended lately. Thread-safe; ``now`` in seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}

    def start(
        self,
        actor: Actor,
        place: str,
        title: str,
        work: Callable[[], Result],
        *,
        reference: str = "",
        deletes: bool = False,
        section: str = "",
    ) -> Run:
        """Begin it in a thread. Raises ConflictError where too much is under way."""
        now = self._now()
        run = Run(secrets.token_hex(8), actor.id, place, title, reference, now, deletes, section)
        with self._lock:
            self._forget(now)
            if sum(not item.done for item in self._runs.values()) >= MAX_UNDER_WAY:
                raise ConflictError(
                    f"{MAX_UNDER_WAY} erasures, deletions and tests are under way",
                    hint="Try again when one has ended.",
                )
            self._runs[run.id] = run
        doing = (run, work, self._now)
        threading.Thread(target=_do, args=doing, name="console-run", daemon=True).start()
        return run

    def find(self, actor: Actor, place: str, run_id: str) -> Run:
        """One that the actor began. Raises NotFoundError."""
        with self._lock:
            run = self._runs.get(run_id)
        if run is None or run.actor_id != actor.id or run.place != place:
            raise NotFoundError(
                "this is not followed here any more",
                hint="The list of erasures and the certificates say what came of it.",
            )
        return run

    def _forget(self, now: float) -> None:
        """Old results go, and the oldest where there are too many; their openings with them."""
        for key, run in list(self._runs.items()):
            if run.done and (now - run.ended_at > KEPT_S or len(self._runs) >= MAX_RUNS):
                del self._runs[key]


def _do(run: Run, work: Callable[[], Result], now: Callable[[], float]) -> None:
    result: Result | None = None
    error, hint = "", ""
    try:
        result = work()
    except KvrunError as failure:
        error, hint = failure.message, failure.hint or ""
    except Exception:
        _log.exception("%s failed", run.id)
        error = "the control plane failed; its log says why"
    run.ended_at, run.hint = now(), hint
    # Last: they say that it is done.
    run.result, run.error = result, error
