"""Conditions are bounded: what loops, explodes or takes long is refused, and nothing crashes."""

from __future__ import annotations

import itertools

import pytest

from kvrun.policy.condition import MAX_CHARS, Budget, Condition, ConditionError

TENANT = {"class": "eu", "region": "eu-west-1", "labels": {"plan": "gold"}}
VARIABLES: dict[str, object] = {
    "tenant": TENANT,
    "workspace": "acme",
    "deployment": "chat",
    "model": "m",
    "engine": "vllm",
    "instance": {"region": "eu-west-1"},
}


def _budget() -> Budget:
    return Budget(itertools.repeat(0.0).__next__)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('tenant.class == "eu"', True),
        ('tenant.labels["plan"] in ["gold", "silver"]', True),
        ("tenant.labels.plan == 'free'", False),
        ("tenant.labels.contract == 'x'", None),
        ("has(tenant.labels.contract) && tenant.labels.contract == 'x'", False),
        ('tenant.region.startsWith("eu-") && instance.region == tenant.region', True),
        ('["a", "b"].exists(x, x == workspace)', False),
        ("1 / 0 == 1", None),
        ("tenant.class", None),
    ],
)
def test_a_condition_holds_does_not_or_cannot_be_said(text: str, holds: bool | None) -> None:
    assert Condition(text).holds(VARIABLES, _budget()) is holds


LIST = f"[{','.join('1' * 100)}]"
LOOPS = "[1, 2].all(a, [1, 2].all(b, [1, 2].all(c, true)))"


@pytest.mark.parametrize(
    "text",
    [
        "a" * (MAX_CHARS + 1),
        "(" * 500 + "1" + ")" * 500,
        "[" * 40 + "]" * 40,
        "!" * 200 + "true",
        "! " * 200 + "true",
        "-" * 900 + "1 == 1",
        "true ? " * 100 + "true" + ": true" * 100,
        "true && " * 120 + "true",
        "1 + " * 240 + "1 == 1",
        f"{LIST}.all(a, {LIST}.all(b, {LIST}.all(c, true)))",
        f"{LIST}.map(a, {LIST}.map(b, a + b)).size() > 0",
        "[1].map(a, a).map(a, a).map(a, a).map(a, a).map(a, a).size() > 0",
        f"{LIST} . all ( a , {LIST} . all ( b , true ) )",
        'workspace.matches("(a+)+$")',
        '"""unended',
        # What looks like a text to whoever does not know CEL's other ways to write one.
        f'"""\'""" == workspace || {LOOPS} || """\'""" == workspace',
        f"{LOOPS} == true".replace("(", " // \n("),
        LOOPS.replace("all(", "existsOne("),
        "'unended",
        "",
    ],
)
def test_what_could_loop_or_explode_is_refused(text: str) -> None:
    with pytest.raises(ConditionError):
        Condition(text)


@pytest.mark.parametrize("sign", [*"({[!-?:.,&|+*/%<>='\"\\0a ", "all(", "? :", "é", "\x00"])
def test_nothing_that_is_repeated_crashes(sign: str) -> None:
    for count in (10, 100, MAX_CHARS // len(sign)):
        for text in (sign * count, f"true {sign * count} true"):
            try:
                Condition(text).holds(VARIABLES, _budget())
            except ConditionError:
                continue


def test_an_evaluation_that_takes_long_is_refused() -> None:
    clock = itertools.count(0.0, 0.06)
    with pytest.raises(ConditionError, match="one evaluation took 60 ms"):
        Condition("true").holds(VARIABLES, Budget(clock.__next__))


def test_all_evaluations_together_have_a_bound() -> None:
    budget = Budget(itertools.count(0.0, 0.04).__next__, left_s=0.1)
    condition = Condition("true")
    assert [condition.holds(VARIABLES, budget) for _ in range(2)] == [True, True]
    with pytest.raises(ConditionError, match="together"):
        condition.holds(VARIABLES, budget)
