"""A run's last lines say which real engines and demos it ran."""

from __future__ import annotations

from support.which_ran import summary


def test_what_ran_is_said_with_its_results() -> None:
    results = [("vLLM", "passed"), ("demo with vLLM", "failed"), ("vLLM", "passed")]
    assert summary(results, ()) == ["real engines ran: demo with vLLM (1 failed), vLLM (2 passed)"]


def test_what_was_left_to_the_long_run_is_named_unless_a_part_of_it_ran() -> None:
    lines = summary([("llama.cpp", "passed")], ["SGLang", "llama.cpp", "demo with vLLM"])
    assert lines[1:] == ["left out here: SGLang, demo with vLLM (make test-long)"]


def test_a_run_without_engines_says_nothing() -> None:
    assert summary([], ["SGLang"]) == []
