"""Isolation self-tests by themselves: whose turn it is, once a period, whatever one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from api.api_rig import World
from kvrun.api.isolation_schedule import run_due, schedule_of
from kvrun.api.services import Services
from kvrun.config.isolation import IsolationSection
from kvrun.deployments.model import Deployment
from kvrun.isolation.report import Outcome
from kvrun.isolation.target import SelfTestError

DAY_S = 86_400


class SelfTests:
    """Stands for them; ``fails`` are deployments that cannot be tested."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails: set[str] = set()
        self.stop = False

    def stopped(self) -> bool:
        return self.stop

    def __call__(
        self, services: Services, found: Deployment, stopped: Callable[[], bool]
    ) -> SimpleNamespace:
        self.made.append(found.spec.name)
        if found.spec.name in self.fails:
            raise SelfTestError("tenants come from a token")
        if found.spec.name == "last":
            self.stop = True
        assert stopped() is self.stop
        return SimpleNamespace(result=SimpleNamespace(outcome=Outcome.PASS))


def scheduled(world: World, every_s: int = DAY_S) -> Services:
    section = IsolationSection(every_s=every_s)
    config = world.services.config.model_copy(update={"isolation": section})
    return replace(world.services, config=config)


def test_each_running_deployment_has_its_turn_once_a_period_and_by_default_none(
    world: World,
) -> None:
    chat, stuck, stopped = (world.deployment(name) for name in ("chat", "stuck", "stopped"))
    world.services.deployments.stop(stopped.id)
    tests = SelfTests()
    tests.fails.add("stuck")
    assert run_due(world.services, tests.stopped, tests) == []
    assert world.services.config.isolation.every_s == 0
    services = scheduled(world)
    assert set(run_due(services, tests.stopped, tests)) == {chat.id, stuck.id}
    assert schedule_of(services, chat.id).last.said == "pass"  # type: ignore[union-attr]
    assert schedule_of(services, stuck.id).last.said == "tenants come from a token"  # type: ignore[union-attr]
    assert schedule_of(services, stopped.id).last is None
    # Another control plane on the same folder knows of it.
    assert run_due(scheduled(world), tests.stopped, tests) == []
    world.clock.ahead_s = DAY_S - 60
    assert run_due(services, tests.stopped, tests) == []
    world.clock.ahead_s = DAY_S + 60
    assert set(run_due(services, tests.stopped, tests)) == {chat.id, stuck.id}
    assert sorted(tests.made) == ["chat", "chat", "stuck", "stuck"]
    log = "".join(path.read_text() for path in services.access_log.folder.glob("*.jsonl"))
    assert log.count("requested: isolation self-test by the schedule") == 4


def test_what_the_end_of_the_control_plane_cut_off_is_tried_again(world: World) -> None:
    last = world.deployment("last")
    services, tests = scheduled(world), SelfTests()
    run_due(services, tests.stopped, tests)
    assert schedule_of(services, last.id).last is None
    assert run_due(services, tests.stopped, tests) == []
    tests.stop = False
    assert run_due(services, tests.stopped, tests) == [last.id]
    assert tests.made == ["last", "last"]


@pytest.mark.parametrize("every_s", [1, 3599, -1, 40_000_000])
def test_nothing_is_tested_all_the_time(every_s: int) -> None:
    with pytest.raises(ValidationError):
        IsolationSection(every_s=every_s)
