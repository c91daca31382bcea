"""A deployment's life: what may be asked when, and that supervision leads to it from anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.machine import (
    DRAIN_TIMEOUT_S,
    KILL_AFTER_S,
    LONGEST_RETRY_S,
    STEADY_S,
    Action,
    Command,
    Life,
    Seen,
    allowed,
    command,
    failed,
    step,
    watched,
)
from kvrun.deployments.model import DeploymentState as State
from kvrun.deployments.model import Wanted

NEW = Life(State.CREATED, Wanted.STOP, "", 0, 0, 0, 0.0, None, None)


class KilledError(Exception):
    """The control plane ends here."""


@dataclass
class World:
    """One deployment's record and its process tree, and a control plane that may be killed.

    ``kill_at`` counts its steps (save, act) and ends it before one of them.
    """

    life: Life = NEW
    now: float = 0.0
    alive: bool = False
    attempt: int = 0
    ended: str = ""
    kill_at: int | None = None
    steps: int = 0
    launched: list[int] = field(default_factory=list)

    def ask(self, asked: Command) -> None:
        self._step()
        self.life = command(self.life, asked, self.now)

    def look(self) -> None:
        self.now += 1.0
        seen = Seen(self.alive, self.alive, self.attempt, self.ended, idle=True)
        after, action = step(self.life, seen, self.now)
        self._step()
        self.life = after
        self._step()
        if action is Action.LAUNCH:
            assert not self.alive, "two process trees on one folder"
            self.alive, self.attempt, self.ended = True, after.attempt, ""
            self.launched.append(after.attempt)
        elif action in (Action.TERMINATE, Action.KILL):
            self.alive = False
        elif action is Action.DELETE:
            self.alive = False
            self._step()
            self.life = replace(self.life, state=State.DELETED)

    def settle(self) -> None:
        self.kill_at = None
        for _ in range(int(LONGEST_RETRY_S) + 10):
            self.look()

    def crash(self) -> None:
        if self.alive:
            self.alive, self.ended = False, "engine ended by itself"

    def _step(self) -> None:
        self.steps += 1
        if self.kill_at is not None and self.steps >= self.kill_at:
            raise KilledError


def test_every_state_knows_what_may_be_asked_and_what_to_do() -> None:
    for state in State:
        life = replace(NEW, state=state)
        for asked in Command:
            if asked in allowed(state):
                assert command(life, asked, 1.0).wanted in Wanted
                continue
            with pytest.raises(WrongStateError) as refused:
                command(life, asked, 1.0)
            assert state.value in refused.value.message
            for possible in allowed(state):
                assert possible.value in (refused.value.hint or "")
        step(life, Seen(alive=False), 1.0)


def test_a_deleted_deployment_takes_no_command() -> None:
    assert allowed(State.DELETED) == frozenset()
    assert State.DELETED not in {
        command(replace(NEW, state=state), asked, 0.0).state
        for state in State
        for asked in allowed(state)
    }


moves = st.lists(st.sampled_from([*Command, "crash", "look", "kill"]), max_size=12)


@given(moves, st.integers(0, 8))
def test_whatever_happened_supervision_leads_to_what_was_asked_for_last(
    moves: list[Command | str], when: int
) -> None:
    world = World()
    for move in moves:
        if move == "kill":
            # The control plane is killed within its next steps, and another one starts.
            world.kill_at = world.steps + when
        try:
            if isinstance(move, Command):
                if move in allowed(world.life.state):
                    world.ask(move)
            elif move == "crash":
                world.crash()
            else:
                world.look()
        except KilledError:
            world.kill_at = None
    world.settle()
    assert len(set(world.launched)) == len(world.launched), "an attempt was launched twice"
    wanted = world.life.wanted
    if wanted is Wanted.RUN:
        assert world.life.state is State.RUNNING
    assert world.alive == (wanted is Wanted.RUN)
    if wanted is Wanted.DELETE:
        assert world.life.state is State.DELETED


def test_a_control_plane_killed_before_it_launched_launches_later_and_once() -> None:
    world = World()
    world.ask(Command.START)
    assert world.life.state is State.STARTING
    assert not world.alive
    world.settle()
    assert world.launched == [1]
    assert world.life.state is State.RUNNING


def test_crashes_in_a_row_wait_longer_each_time_up_to_a_limit() -> None:
    life = replace(NEW, state=State.RUNNING, wanted=Wanted.RUN, started_at=0.0)
    waits = []
    for _ in range(12):
        life = failed(life, "engine ended by itself", 10.0)
        assert life.restart_at is not None
        waits.append(life.restart_at - 10.0)
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_RETRY_S
    assert life.restarts == 12
    assert life.reason == "engine ended by itself"


def test_a_crash_after_a_steady_run_begins_a_new_row() -> None:
    life = replace(NEW, state=State.RUNNING, wanted=Wanted.RUN, started_at=0.0, failures=9)
    assert failed(life, "", STEADY_S).failures == 1
    assert failed(life, "", STEADY_S - 1).failures == 10


@given(
    st.sampled_from([None, Command.START, Command.RESTART, Command.REBUILD]),
    st.floats(STEADY_S, 100 * STEADY_S),
    st.integers(2, 14),
)
def test_starts_that_fail_after_a_long_run_wait_longer_each_time(
    asked: Command | None, ran_s: float, tries: int
) -> None:
    life = replace(NEW, state=State.RUNNING, wanted=Wanted.RUN, attempt=1, started_at=0.0)
    now = ran_s
    life, _ = step(life, Seen(alive=False, attempt=1, ended="it crashed"), now)
    if asked is not None:
        life = command(life, asked, now)
    waits = []
    for _ in range(tries):
        if life.state is State.FAILED:
            assert life.restart_at is not None
            now = life.restart_at
            life, action = step(life, Seen(alive=False), now)
            assert action is Action.LAUNCH
        now += 1.0
        life, _ = step(life, Seen(alive=False, attempt=life.attempt, ended="no memory"), now)
        assert life.restart_at is not None
        waits.append(life.restart_at - now)
    shorter, longer = waits[:-1], waits[1:]
    assert all(
        after > before or after == pytest.approx(LONGEST_RETRY_S)
        for before, after in zip(shorter, longer, strict=True)
    ), waits
    assert life.restarts >= tries


def test_a_failed_deployment_waits_for_its_moment_and_says_why() -> None:
    life = failed(replace(NEW, state=State.RUNNING, wanted=Wanted.RUN), "no memory", 100.0)
    early, action = step(life, Seen(alive=False), 101.0)
    assert (early, action) == (life, Action.NOTHING)
    later, action = step(life, Seen(alive=False), 102.0)
    assert action is Action.LAUNCH
    assert later.state is State.STARTING
    assert later.reason == "no memory"


def test_a_drain_stops_when_nothing_is_under_way_or_at_its_end() -> None:
    life = command(replace(NEW, state=State.RUNNING, wanted=Wanted.RUN), Command.DRAIN, 0.0)
    for unknown in (False, None):
        waits, action = step(life, Seen(True, True, idle=unknown), 1.0)
        assert (waits.state, action) == (State.DRAINING, Action.NOTHING)
    assert step(life, Seen(True, True, idle=True), 1.0)[1] is Action.TERMINATE
    late, action = step(life, Seen(True, True, idle=False), DRAIN_TIMEOUT_S)
    assert action is Action.TERMINATE
    assert "under way" in late.reason


def test_what_does_not_end_when_asked_is_killed_in_the_end() -> None:
    life = command(replace(NEW, state=State.RUNNING, wanted=Wanted.RUN), Command.STOP, 0.0)
    assert step(life, Seen(True), KILL_AFTER_S - 1)[1] is Action.TERMINATE
    assert step(life, Seen(True), KILL_AFTER_S)[1] is Action.KILL


@pytest.mark.parametrize("state", [State.RUNNING, State.UNHEALTHY])
def test_a_trouble_that_was_noted_is_forgotten_when_it_is_over(state: State) -> None:
    noted = replace(NEW, state=state, wanted=Wanted.RUN, reason="its file cannot be read")
    seen = Seen(alive=True, ready=state is State.RUNNING)
    for after in (step(noted, seen, 1.0)[0], watched(noted, seen, 1.0)):
        assert after.state is state
        assert (after.reason == "") == (state is State.RUNNING)
        assert "file" not in after.reason


def test_one_that_somebody_else_runs_is_what_is_seen() -> None:
    life = NEW
    for seen, state in (
        (Seen(True, True), State.RUNNING),
        (Seen(True, False), State.UNHEALTHY),
        (Seen(False), State.STOPPED),
    ):
        life = watched(life, seen, 1.0)
        assert life.state is state
