"""A deployment's life as a state machine: what people may ask, and what supervision does. Pure.

Supervision compares what a record says with what runs. It repeats until both agree, so a control
plane that was killed between any two steps goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.model import DeploymentState as State
from kvrun.deployments.model import Wanted

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 300.0
STEADY_S = 600.0
"""Who ran for so long had a crash of its own, not one more of a series."""
KILL_AFTER_S = 120.0
"""After SIGTERM a process tree has so long to end by itself."""
DRAIN_TIMEOUT_S = 600.0


class Command(StrEnum):
    """What people may ask of a deployment that the control plane runs."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    REBUILD = "rebuild"
    DRAIN = "drain"
    DELETE = "delete"


class Action(Enum):
    """What is to be done to the processes now."""

    NOTHING = "nothing"
    LAUNCH = "launch"
    TERMINATE = "terminate"
    KILL = "kill"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Seen:
    """What runs. ``attempt``: which launch it is or was, 0 for one that nobody launched here.

    ``ready``: it answers. ``ended``: how a process that is gone said goodbye, maybe nothing.
    ``idle``: no request is under way; None where nobody can tell.
    """

    alive: bool
    ready: bool = False
    attempt: int = 0
    ended: str = ""
    idle: bool | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """The part of a record that changes by itself. Times in seconds since 1970.

    ``attempt`` numbers the launches; ``failures`` counts crashes that followed each other fast.
    ``started_at`` is when the launch of now first answered, None until it does.
    """

    state: State
    wanted: Wanted
    reason: str
    attempt: int
    failures: int
    restarts: int
    state_since: float
    started_at: float | None
    restart_at: float | None


def allowed(state: State) -> frozenset[Command]:
    """What may be asked in a state."""
    return frozenset(_AFTER[state])


def command(life: Life, asked: Command, now: float) -> Life:
    """The life after a command. Raises WrongStateError that names what is allowed."""
    after = _AFTER[life.state].get(asked)
    if after is None:
        can = ", ".join(sorted(allowed(life.state))) or "nothing: its record is read only"
        raise WrongStateError(
            f"a deployment that is {life.state} cannot {asked}", hint=f"can: {can}"
        )
    state, wanted = after
    moved = _move(life, state, now, "") if state is not life.state else life
    moved = replace(moved, wanted=wanted, restart_at=None)
    if asked in (Command.START, Command.RESTART, Command.REBUILD):
        moved = replace(moved, failures=0, restarts=0)
    return _numbered(moved) if state is State.STARTING else moved


def step(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    """The life and the action that follow from what is seen now."""
    return _STEPS[life.state](life, seen, now)


def failed(life: Life, why: str, now: float) -> Life:
    """It could not be launched, or ended by itself: when it is started again, and why not yet."""
    steady = life.started_at is not None and now - life.started_at >= STEADY_S
    failures = 1 if steady else life.failures + 1
    wait_s = backoff_s(failures)
    moved = _move(life, State.FAILED, now, why)
    return replace(moved, failures=failures, restarts=life.restarts + 1, restart_at=now + wait_s)


def backoff_s(failures: int) -> float:
    """Seconds until the next start after so many crashes in a row."""
    return min(FIRST_RETRY_S * 2.0 ** min(max(failures, 1) - 1, 20), LONGEST_RETRY_S)


def watched(life: Life, seen: Seen, now: float) -> Life:
    """The life of a deployment that somebody else runs: what is seen is what it is."""
    if life.state in (State.DELETING, State.DELETED):
        return life
    state = State.STOPPED
    if seen.alive:
        state = State.RUNNING if seen.ready else State.UNHEALTHY
    reason = (
        "its daemon answers, its gateway or engine does not" if state is State.UNHEALTHY else ""
    )
    if state is life.state:
        return replace(life, reason=reason)  # what was noted meanwhile is over
    moved = _move(life, state, now, reason)
    return replace(moved, started_at=now) if state is State.RUNNING else moved


def _move(life: Life, state: State, now: float, reason: str) -> Life:
    return replace(life, state=state, reason=reason, state_since=now)


def _launch(life: Life, now: float, reason: str = "") -> tuple[Life, Action]:
    return _numbered(_move(life, State.STARTING, now, reason)), Action.LAUNCH


def _numbered(life: Life) -> Life:
    """The next launch: it has not run yet, however long the one before it did."""
    return replace(life, attempt=life.attempt + 1, started_at=None, restart_at=None)


def _at_rest(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    """Created or stopped: somebody may have run `kvrun up` on the folder by hand."""
    if not seen.alive:
        return life, Action.NOTHING
    found = _move(life, State.STARTING, now, "it was started outside the control plane")
    return replace(found, wanted=Wanted.RUN, started_at=None), Action.NOTHING


def _starting(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    if seen.alive:
        if not seen.ready:
            return life, Action.NOTHING
        return replace(_move(life, State.RUNNING, now, ""), started_at=now), Action.NOTHING
    if seen.attempt != life.attempt:
        # The control plane ended before it launched, or while it did.
        return life, Action.LAUNCH
    return failed(life, seen.ended or "it ended while it started", now), Action.NOTHING


def _serving(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    if not seen.alive:
        return failed(life, seen.ended or "it ended by itself", now), Action.NOTHING
    state = State.RUNNING if seen.ready else State.UNHEALTHY
    reason = "" if seen.ready else "it does not answer"
    if state is life.state:
        return replace(life, reason=reason), Action.NOTHING  # what was noted meanwhile is over
    return _move(life, state, now, reason), Action.NOTHING


def _draining(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    if not seen.alive:
        return _move(life, State.STOPPED, now, seen.ended), Action.NOTHING
    late = now - life.state_since >= DRAIN_TIMEOUT_S
    if not seen.idle and not late:
        return life, Action.NOTHING
    reason = "requests were still under way at the end of the drain" if not seen.idle else ""
    return _move(life, State.STOPPING, now, reason), Action.TERMINATE


def _stopping(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    if seen.alive:
        late = now - life.state_since >= KILL_AFTER_S
        return life, Action.KILL if late else Action.TERMINATE
    if life.wanted is Wanted.RUN:
        return _launch(life, now)
    return replace(_move(life, State.STOPPED, now, life.reason), restart_at=None), Action.NOTHING


def _fallen(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    if seen.alive:
        return _at_rest(life, seen, now)
    if life.wanted is not Wanted.RUN or life.restart_at is None or now < life.restart_at:
        return life, Action.NOTHING
    return _launch(life, now, life.reason)


def _deleting(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    waits = life.restart_at is not None and now < life.restart_at
    return life, Action.NOTHING if waits else Action.DELETE


def _deleted(life: Life, seen: Seen, now: float) -> tuple[Life, Action]:
    return life, Action.NOTHING


_UP = {
    Command.STOP: (State.STOPPING, Wanted.STOP),
    Command.RESTART: (State.STOPPING, Wanted.RUN),
    Command.REBUILD: (State.STOPPING, Wanted.RUN),
    Command.DELETE: (State.DELETING, Wanted.DELETE),
}
_DOWN = {
    Command.START: (State.STARTING, Wanted.RUN),
    Command.REBUILD: (State.STARTING, Wanted.RUN),
    Command.DELETE: (State.DELETING, Wanted.DELETE),
}
_DRAIN = {Command.DRAIN: (State.DRAINING, Wanted.STOP)}
_AFTER: dict[State, dict[Command, tuple[State, Wanted]]] = {
    State.CREATED: {name: after for name, after in _DOWN.items() if name is not Command.REBUILD},
    State.STARTING: _UP,
    State.RUNNING: _UP | _DRAIN,
    State.UNHEALTHY: _UP | _DRAIN,
    State.DRAINING: _UP,
    State.STOPPING: _UP | {Command.START: (State.STOPPING, Wanted.RUN)},
    State.STOPPED: _DOWN,
    State.FAILED: _DOWN
    | {
        Command.STOP: (State.STOPPING, Wanted.STOP),
        Command.RESTART: (State.STARTING, Wanted.RUN),
    },
    State.DELETING: {Command.DELETE: (State.DELETING, Wanted.DELETE)},
    State.DELETED: {},
}
_STEPS = {
    State.CREATED: _at_rest,
    State.STARTING: _starting,
    State.RUNNING: _serving,
    State.UNHEALTHY: _serving,
    State.DRAINING: _draining,
    State.STOPPING: _stopping,
    State.STOPPED: _at_rest,
    State.FAILED: _fallen,
    State.DELETING: _deleting,
    State.DELETED: _deleted,
}
