"""Which rows a run of ``kvrun bench ttft`` prints, and what it refuses to start for."""

from __future__ import annotations

import random

from typer.testing import CliRunner

from kvrun.bench.ttft import _rows, _Times
from kvrun.cli.main import app

COLD_S = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01]


def times(*, plain: bool = True, copied: bool = True) -> _Times:
    """Seven rounds: kvrun adds 1 % to a cold prompt, a reload takes 5 % and sealing 2 % of it."""
    governed = [1.01 * each for each in COLD_S]
    reload = [0.05 * each for each in COLD_S]
    return _Times(
        plain=COLD_S if plain else [],
        plain_again=COLD_S if plain else [],
        governed=governed,
        reload=reload,
        unsealed_reload=[each / 1.02 for each in reload] if copied else [],
        disk_reload=[2 * each for each in reload],
    )


def verdicts(measured: _Times) -> dict[str, bool | None]:
    rows = _rows(16_000, measured, random.Random(0), "vLLM")
    return {row.metric.removesuffix(", 16k tokens"): row.met for row in rows if row.goal}


def test_all_three_engines_judge_a_cold_prompt_a_reload_and_the_cipher() -> None:
    assert verdicts(times()) == {
        "cold TTFT, governed": True,
        "reload TTFT, memory tier": True,
        "reload TTFT, sealed": True,
    }


def test_what_was_not_asked_has_no_row() -> None:
    assert "reload TTFT, sealed" not in verdicts(times(copied=False))
    without_plain = _rows(16_000, times(plain=False), random.Random(0), "vLLM")
    assert [row.metric for row in without_plain if "cold TTFT" in row.metric] == [
        "cold TTFT, governed, 16k tokens"
    ]
    assert without_plain[0].value == 1010.0


def test_a_cipher_that_takes_too_long_is_told() -> None:
    slow = times()
    slow.reload = [1.1 * each for each in slow.unsealed_reload]
    assert verdicts(slow)["reload TTFT, sealed"] is False


def test_nothing_to_compare_with_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "ttft", "--no-plain", "--no-copied"])
    assert result.exit_code == 2
    assert "nothing to compare with" in result.output
