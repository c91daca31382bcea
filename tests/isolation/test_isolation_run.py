"""The self-test passes what isolates and fails what leaks, tier by tier and by the clock alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_deployment import SimulatedDeployment

from kvrun.isolation.report import Check, Outcome, outcome_of
from kvrun.isolation.run import Found, Options, run_self_test
from kvrun.isolation.target import CANARY_PREFIX, SelfTestError

OPTIONS = Options(rounds=12, words=60, restart=True)


def seeded(seed: int = 3) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def run(target: SimulatedDeployment, options: Options = OPTIONS) -> Found:
    return run_self_test(target, options, seeded())


def outcomes(found: Found) -> dict[str, Outcome]:
    return {check.name: check.outcome for check in found.checks}


def test_an_isolated_deployment_passes_on_every_tier_and_its_canaries_are_erased() -> None:
    target = SimulatedDeployment()
    found = run(target)
    assert outcomes(found) == {
        "engine memory": Outcome.PASS,
        "times to first token": Outcome.PASS,
        "doors": Outcome.PASS,
        "memory tier": Outcome.PASS,
        "disk tier": Outcome.PASS,
        "object tier": Outcome.PASS,
        "after a restart, disk tier": Outcome.PASS,
        "after a restart, object tier": Outcome.PASS,
    }
    assert outcome_of(found.checks) is Outcome.PASS
    assert (found.restarted, target.restarts) == (True, 1)
    users = {canary.user for canary, _ in target.asked}
    assert users == {canary.user for canary in target.erased}
    assert len(users) == 2
    assert all(canary.session.startswith(CANARY_PREFIX) for canary, _ in target.asked)
    assert len(found.erased) == 3


@pytest.mark.parametrize(
    ("shared", "failed"),
    [
        ("gpu", "engine memory"),
        ("memory", "memory tier"),
        ("disk", "disk tier"),
        ("object", "object tier"),
    ],
)
def test_a_tier_that_everybody_finds_fails_by_its_name(shared: str, failed: str) -> None:
    found = run(SimulatedDeployment(shared=frozenset({shared})))
    assert outcomes(found)[failed] is Outcome.FAIL
    assert outcome_of(found.checks) is Outcome.FAIL


def test_a_users_sessions_that_share_fail() -> None:
    found = run(SimulatedDeployment(by_user=True))
    assert outcomes(found)["engine memory"] is Outcome.FAIL
    # The other user is still a stranger, and the clock looks at that one.
    assert outcomes(found)["times to first token"] is Outcome.PASS


def test_a_shared_cache_that_denies_it_is_seen_by_the_clock() -> None:
    found = run(SimulatedDeployment(shared=frozenset({"gpu"}), lies=True))
    assert outcomes(found)["times to first token"] is Outcome.FAIL
    assert found.timing is not None
    assert found.timing.seen == "leak"


def test_what_reuses_nothing_or_is_no_faster_passes_nothing() -> None:
    idle = run(SimulatedDeployment(reuses=False))
    for name in (
        "engine memory", "memory tier", "disk tier", "object tier", "times to first token",
        "after a restart, disk tier", "after a restart, object tier",
    ):  # fmt: skip
        assert outcomes(idle)[name] is Outcome.INCONCLUSIVE
    assert outcome_of(idle.checks) is Outcome.INCONCLUSIVE
    slow = run(SimulatedDeployment(saves=False))
    assert outcomes(slow)["times to first token"] is Outcome.INCONCLUSIVE


def test_noise_beyond_what_the_rounds_can_tell_is_inconclusive() -> None:
    found = run(SimulatedDeployment(noise=0.9))
    assert outcomes(found)["times to first token"] is not Outcome.PASS


def test_another_answer_to_the_same_prompt_fails_whatever_the_counters_say() -> None:
    found = run(SimulatedDeployment(wrong_answers=True))
    assert outcomes(found)["engine memory"] is Outcome.FAIL


def test_a_tier_is_looked_at_alone_without_a_restart_and_only_the_canarys_blocks_are_moved() -> (
    None
):
    target = SimulatedDeployment()
    found = run(target, replace(OPTIONS, restart=False, rounds=0))
    seen = outcomes(found)
    assert {seen[f"{tier} tier"] for tier in ("memory", "disk", "object")} == {Outcome.PASS}
    (after,) = (check for check in found.checks if check.name == "after a restart")
    assert (after.outcome, target.restarts) == (Outcome.SKIPPED, 0)
    assert "--restart" in after.detail


def test_what_comes_back_after_a_restart_is_compared_on_each_tier_that_lasts() -> None:
    only_objects = SimulatedDeployment(tiers=("memory", "object"))
    found = outcomes(run(only_objects))
    assert found["after a restart, object tier"] is Outcome.PASS
    assert "after a restart, disk tier" not in found
    lost = SimulatedDeployment(tiers=("memory",))
    found = outcomes(run(lost))
    assert (found["after a restart"], lost.restarts) == (Outcome.SKIPPED, 0)
    assert found["disk tier"] is found["object tier"] is Outcome.SKIPPED
    leaky = SimulatedDeployment(shared=frozenset({"object"}))
    assert outcomes(run(leaky))["after a restart, object tier"] is Outcome.FAIL


def test_an_engine_that_keeps_nothing_passes_by_what_its_owner_finds_below() -> None:
    target = SimulatedDeployment(forgets=True)
    found = run(target)
    assert outcome_of(found.checks) is Outcome.PASS
    (engine,) = (check for check in found.checks if check.name == "engine memory")
    assert "keeps nothing" in engine.detail
    assert (
        outcomes(run(SimulatedDeployment(forgets=True, by_user=True)))["engine memory"]
        is Outcome.FAIL
    )
    # It keeps something after all, which is then not what was said of it.
    assert (
        outcomes(run(SimulatedDeployment(forgets=True, hoards=True)))["engine memory"]
        is Outcome.FAIL
    )
    idle = run(SimulatedDeployment(forgets=True, reuses=False))
    assert outcomes(idle)["engine memory"] is Outcome.INCONCLUSIVE


def test_a_single_tenant_gets_no_users_and_its_sessions_are_compared() -> None:
    target = SimulatedDeployment(many_users=False)
    found = run(target)
    assert {canary.user for canary, _ in target.asked} == {""}
    assert outcomes(found)["another user"] is Outcome.SKIPPED
    assert outcomes(found)["engine memory"] is Outcome.PASS
    shared = run(SimulatedDeployment(many_users=False, shared=frozenset({"gpu"})))
    assert outcomes(shared)["engine memory"] is Outcome.FAIL


def test_a_stateless_deployment_passes_by_keeping_nothing() -> None:
    found = run(SimulatedDeployment(stateless=True, tiers=()))
    assert outcomes(found)["nothing is kept"] is Outcome.PASS
    assert outcomes(found)["times to first token"] is Outcome.SKIPPED
    assert outcome_of(found.checks) is Outcome.PASS


def test_the_canaries_are_erased_also_when_the_deployment_fails_half_way() -> None:
    target = SimulatedDeployment(fail_after=5)
    with pytest.raises(SelfTestError, match="went away"):
        run(target)
    assert len(target.erased) == 3


def test_no_two_runs_ask_the_same_and_too_few_rounds_are_refused() -> None:
    one, two = SimulatedDeployment(), SimulatedDeployment()
    run_self_test(one, OPTIONS, seeded(1))
    run_self_test(two, OPTIONS, seeded(2))
    assert not {prompt for _, prompt in one.asked} & {prompt for _, prompt in two.asked}
    with pytest.raises(ValueError, match="too few"):
        run(SimulatedDeployment(), replace(OPTIONS, rounds=3))


def test_the_whole_is_as_good_as_its_worst_part() -> None:
    def whole(*found: Outcome) -> Outcome:
        return outcome_of([Check(name="x", outcome=item, detail="") for item in found])

    assert whole(Outcome.PASS, Outcome.SKIPPED) is Outcome.PASS
    assert whole(Outcome.PASS, Outcome.INCONCLUSIVE) is Outcome.INCONCLUSIVE
    assert whole(Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS) is Outcome.FAIL
    assert whole(Outcome.SKIPPED) is Outcome.SKIPPED
    assert whole() is Outcome.SKIPPED
