"""Numbers, charts, forms, steps and addresses as the pages have them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvrun.api.cookies import local_address
from kvrun.console import charts, words
from kvrun.console.audit import tone_of
from kvrun.console.forms import Form
from kvrun.console.live import event
from kvrun.console.progress import progress
from kvrun.console.runs import Result, Run
from kvrun.deployments.audit_view import Banner
from kvrun.erasure.job import JobState


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.34, "340 ms"),
        (12.44, "12.4 s"),
        (60, "1 min"),
        (3600 * 3 + 60 * 20, "3 h 20 min"),
        (7 * 86_400, "7 d"),
        (30 * 86_400 + 7200, "30 d 2 h"),
    ],
)
def test_a_length_of_time_is_written_for_people(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_numbers_that_nobody_knows_are_dashes_and_not_zeros() -> None:
    assert [words.count(None), words.size(None), words.percent(None)] == ["–"] * 3
    assert words.count(1234567) == "1,234,567"
    assert words.percent(0.625) == "62.5 %"
    assert words.plural(1, "record") == "1 record"
    assert words.plural(2000, "record") == "2,000 records"


def test_moments_are_in_utc() -> None:
    assert words.moment_utc(0) == "1970-01-01 00:00:00 UTC"
    assert words.moment_iso(0) == "1970-01-01T00:00:00Z"


@given(
    some.lists(some.floats(-1e9, 1e12, allow_nan=False), max_size=12),
    some.text(max_size=40).filter(lambda text: all(ord(char) >= 32 for char in text)),
)
def test_charts_are_well_formed_whatever_they_show(values: list[float], title: str) -> None:
    parts = [charts.Part(title, value, number) for number, value in enumerate(values)]
    for chart in (
        charts.share_bar(title, parts),
        charts.line(title, values),
        charts.level_bar(title, values[0] if values else 0.0, 100.0),
    ):
        root = ElementTree.fromstring(str(chart))
        assert root.attrib["aria-label"] == title
        assert "style" not in root.attrib
        widths = [float(rect.attrib["width"]) for rect in root.iter("rect")]
        assert all(width >= 0 for width in widths)
        assert sum(widths) <= 100.01


def test_a_share_is_as_long_as_it_is_large() -> None:
    parts = [charts.Part("a", 30, 0), charts.Part("b", 0, 1), charts.Part("c", 10, 2)]
    root = ElementTree.fromstring(str(charts.share_bar("t", parts)))
    assert [float(rect.attrib["width"]) for rect in root.iter("rect")] == [75.0, 25.0]


@pytest.mark.parametrize(
    "address",
    ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "", "x",
     "/a\nSet-Cookie: b", "/" + "a" * 1001, "/\tx", "/ä"],
)  # fmt: skip
def test_an_address_of_somewhere_else_leads_to_the_first_page(address: str) -> None:
    assert local_address(address) == "/"


def test_an_address_of_ours_leads_there() -> None:
    address = "/workspaces/ws-1/deployments/d-1/audit?event=sealed"
    assert local_address(address) == address


@given(some.dictionaries(some.text(max_size=12), some.text(max_size=300), max_size=6))
def test_whatever_is_typed_is_read_or_blamed(values: dict[str, str]) -> None:
    for name in values:
        form = Form(values, {key: [value] for key, value in values.items()})
        form.text(name, "It")
        form.number(name, "It", 1, 10)
        form.size(name, "It")
        form.pairs(name, "It")
        form.choice(name, "it", ("a", "b"))
        form.reason(name, "It")
        assert set(form.errors) <= {name}


def test_numbers_and_sizes_are_bounded() -> None:
    form = Form({"a": "9" * 5000, "b": "11", "c": "5", "d": "2 GiB", "e": ""}, {})
    assert form.number("a", "A", 1, 10) is None
    assert form.number("b", "B", 1, 10) is None
    assert form.number("c", "C", 1, 10) == 5
    assert form.size("d", "D") == 2 * 2**30
    assert form.number("e", "E", 1, 10) is None
    assert set(form.errors) == {"a", "b"}


def test_control_characters_are_refused() -> None:
    form = Form({"name": "a\x1b[31mb"}, {})
    assert form.text("name", "The name") == ""
    assert "control characters" in form.errors["name"]


def test_an_event_carries_every_line_and_ends() -> None:
    assert event("state", "<p>\n\n  a</p>\n") == "event: state\ndata: <p>\ndata:   a</p>\n\n"
    assert event("over", "") == "event: over\ndata: \n\n"


def test_what_a_fragment_holds_cannot_begin_another_event() -> None:
    sent = event("state", "x\n\nevent: over\ndata: y")
    assert sent.count("\n\n") == 1
    assert all(line.startswith("data: ") for line in sent.split("\n")[1:-2])


@pytest.mark.parametrize("state", list(JobState))
def test_the_steps_of_an_erasure_follow_its_states(state: JobState) -> None:
    steps = progress(state.value, failed=False)
    reached = list(JobState).index(state)
    assert [step.state for step in steps][:reached] == ["done"] * reached
    assert [step.state for step in steps].count("now") == (state is not JobState.CERTIFIED)
    assert {step.name for step in steps} == {name.value for name in JobState} - {"requested"}


def test_a_failed_erasure_says_at_which_step() -> None:
    steps = progress("drained", failed=True)
    assert [step.name for step in steps if step.state == "failed"] == ["destroyed"]


def test_a_verdict_is_green_only_without_doubts_and_says_what_they_are() -> None:
    good = Banner("w/d/host", 10, 1_700_000_000, 0, "k", {"theirs": 10})
    assert tone_of(good) == "good"
    assert tone_of(replace(good, newer_records=3)) == "good"
    for doubt, said in (
        (replace(good, waiting=2), "alerts of it that wait: 2"),
        (replace(good, newer_records=None), "cannot be asked whether there are newer records"),
        (replace(good, behind=("theirs",)), "theirs has not confirmed all of it"),
    ):
        assert tone_of(doubt) == "open"
        assert said in doubt.text
    assert tone_of(replace(good, witnesses={})) == "open"
    assert tone_of(replace(good, alert="a-1")) == "bad"


def test_what_a_page_shows_of_a_run_is_of_one_moment() -> None:
    run = Run("7c0ffee17c0ffee1", "u-1", "d-1", "Erase user alice", "DSAR-123", 1.0)
    seen = run.as_it_is()
    run.result = Result("Erased and certified")
    assert run.done
    assert not seen.done, "its steps were read before"
    assert run.as_it_is().said == "Erased and certified"
