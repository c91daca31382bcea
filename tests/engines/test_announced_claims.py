"""Claims that come ahead of their requests: each serves as many requests of its salt as it says."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.engines.admission import Admissions, State
from kvrun.engines.claims import AnnouncedClaims
from kvrun.engines.waiting import NO_CLAIM, NO_SALT, AnnouncedAdmissions
from kvrun.instance.claim_messages import Announced
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import Finished, Match, Matched, Verdict
from support.lines import Line, Search


def announce(salt: str, claim: str = "c", uses: int = 1) -> Announced:
    return Announced(salt, claim, uses, "")


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take"]), st.sampled_from("abc"), st.integers(1, 3)),
        max_size=60,
    )
)
def test_no_salt_gets_more_than_was_announced_for_it(steps: list[tuple[str, str, int]]) -> None:
    claims, left = AnnouncedClaims(ord), Counter[str]()
    for number, (step, salt, uses) in enumerate(steps):
        if step == "add":
            claims.add(announce(salt, f"{salt}{number}", uses), 0.0)
            left[salt] += uses
        else:
            taken = claims.take(salt, 0.0) if number % 2 else claims.take_by_id(ord(salt), 0.0)
            assert (taken is not None) == (left[salt] > 0)
            if taken is not None:
                assert taken.claim.startswith(salt)
                left[salt] -= 1


def test_a_claim_is_forgotten_when_its_request_does_not_come() -> None:
    claims = AnnouncedClaims(lifetime_s=10)
    claims.add(announce("a", "old"), 0.0)
    claims.add(announce("a", "new"), 6.0)
    taken = claims.take("a", 11.0)
    assert taken is not None
    assert taken.claim == "new"
    assert claims.take("a", 11.0) is None
    assert len(claims) == 0


def test_there_are_never_more_than_so_many() -> None:
    claims = AnnouncedClaims(max_claims=3)
    for number in range(9):
        claims.add(announce(f"s{number}"), 0.0)
    assert len(claims) == 3
    assert claims.take("s0", 0.0) is None
    assert claims.take("s8", 0.0) is not None


def test_salts_of_the_same_number_are_served_to_nobody_by_number() -> None:
    claims = AnnouncedClaims(lambda salt: 7)
    claims.add(announce("a"), 0.0)
    claims.add(announce("b"), 0.0)
    assert claims.take_by_id(7, 0.0) is None
    assert claims.take("b", 0.0) is not None


@pytest.mark.parametrize("odd", [announce("", "c"), announce("a", "c", 0), announce("a", "c", -1)])
def test_what_makes_no_sense_is_left_out(odd: Announced) -> None:
    claims = AnnouncedClaims()
    claims.add(odd, 0.0)
    assert len(claims) == 0


class Rig:
    def __init__(self) -> None:
        self.line, self.time = Line(), 0.0
        announced = AnnouncedClaims()
        admissions = Admissions(
            cast(Connection, self.line), cast(Reconnector, Search()), self.clock, announced
        )
        self.requests = AnnouncedAdmissions(admissions, announced, self.clock)

    def clock(self) -> float:
        return self.time

    def asked(self) -> list[Match]:
        return [message for message in self.line.sent if isinstance(message, Match)]


def test_a_request_waits_for_its_claim_and_then_for_the_daemon() -> None:
    rig = Rig()
    rig.requests.begin("r", "salt", [b"h" * 32], 20)
    assert rig.requests.state("r") is State.PENDING
    assert rig.asked() == []
    rig.line.answers.append(announce("salt", "the claim"))
    assert rig.requests.poll() == []
    (match,) = rig.asked()
    assert (match.claim, match.salt, match.prompt_tokens) == ("the claim", "salt", 20)
    assert rig.requests.state("r") is State.PENDING
    rig.line.answers.append(Matched(match.request, Verdict.ADMITTED, "", 5, (b"\1",)))
    assert rig.requests.poll() == []
    assert rig.requests.state("r") is State.ADMITTED
    rig.requests.finish("r")
    assert rig.line.sent[-1] == Finished(5)
    assert rig.requests.state("r") is State.DENIED


def test_a_claim_that_is_there_already_is_used_at_once() -> None:
    rig = Rig()
    rig.line.answers.append(announce("salt", uses=2))
    rig.requests.poll()
    for name in ("one", "two", "three"):
        rig.requests.begin(name, "salt", [], 1)
    assert len(rig.asked()) == 2
    # Asked about again, a request takes no further claim.
    rig.requests.begin("one", "salt", [], 1)
    assert len(rig.asked()) == 2


def test_a_request_whose_claim_never_comes_goes_on_without_the_cache() -> None:
    rig = Rig()
    rig.requests.begin("late", "salt", [], 1)
    rig.requests.begin("none", None, [], 1)
    rig.requests.begin("empty", "", [], 1)
    admission = rig.requests.get("none")
    assert admission is not None
    assert admission.reason == NO_SALT
    assert rig.requests.state("empty") is State.DENIED
    rig.time = 0.9
    assert rig.requests.poll() == []
    rig.time = 1.0
    assert rig.requests.poll() == ["late"]
    admission = rig.requests.get("late")
    assert admission is not None
    assert admission.reason == NO_CLAIM


def test_nobody_waits_for_a_daemon_that_is_away() -> None:
    rig = Rig()
    rig.requests.begin("waiting", "salt", [], 1)
    rig.line.closed = True
    assert "waiting" in rig.requests.poll()
    rig.requests.begin("later", "salt", [], 1)
    assert rig.requests.state("later") is State.DENIED
