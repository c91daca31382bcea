"""A self-test that fails has a person look at it, once, with the signed result beside the alert."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).parents[1] / "evidence"))

from evidence_world import LOG_ID, World
from simulated_deployment import SimulatedDeployment

from kvrun.control.alerts import AlertKind
from kvrun.isolation.report import Outcome, sign_result
from kvrun.isolation.run import Options, run_self_test
from kvrun.isolation.service import StoredResult, predicate_of, raise_alert
from kvrun.isolation.target import SelfTestError
from kvrun.keys.signing import KeyPurpose
from kvrun.statements.document import Signer

OPTIONS = Options(rounds=0, words=20)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.day("2026-01-01")
    return world


def failed(world: World) -> StoredResult:
    leaky = SimulatedDeployment(shared=frozenset({"object"}))
    found = run_self_test(leaky, OPTIONS, lambda count: bytes(range(count)))
    result = predicate_of(found, world.clock(), world.clock())
    assert result.outcome is Outcome.FAIL
    data = sign_result(result, b"", world.ring.load_or_create(KeyPurpose.EVIDENCE))
    return StoredResult("isolation/x.json", data, result, Signer.TRUSTED)


def test_a_failure_is_an_alert_on_record_until_a_person_saw_it(world: World) -> None:
    stored = failed(world)
    alert = raise_alert(world.plane, stored)  # nothing was collected before
    assert alert is not None
    assert (alert.kind, alert.log, alert.stops) == (AlertKind.ISOLATION_FAILED, LOG_ID, False)
    assert "object tier" in alert.detail
    kept = world.plane.alerts.place(alert.id) / "result.json"
    assert kept.read_bytes() == stored.data
    assert raise_alert(world.plane, stored) is None
    world.plane.alarm.acknowledge(LOG_ID, "the bucket was shared", start_over=False)
    assert raise_alert(world.plane, stored) is not None
    journal = world.plane.journal.folder.glob("*.jsonl")
    lines = [line for path in journal for line in path.read_bytes().splitlines()]
    reasons = [msgspec.json.decode(line).get("reason") for line in lines]
    assert reasons.count("isolation_failed") == 2


def test_a_self_test_that_is_stopped_erases_its_canaries() -> None:
    target = SimulatedDeployment()
    with pytest.raises(SelfTestError, match="stopped"):
        run_self_test(
            target, OPTIONS, lambda count: bytes(count), stopped=lambda: len(target.asked) > 3
        )
    assert len(target.erased) == 3
