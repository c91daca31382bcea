import os
import shutil

import pytest

from kvrun.bench.gateway import GatewayBenchSettings, cpu_share_row, run_gateway_bench

TINY = GatewayBenchSettings(
    pairs=7,
    one_stream_s=0.05,
    streams=4,
    events=5,
    event_interval_us=10_000,
    paced_s=0.2,
    paced_rounds=1,
)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc for its engine and client")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_gateway_bench_measures_answers_that_all_arrive() -> None:
    rows = {row.metric: row for row in run_gateway_bench(TINY).rows}
    assert rows["failed requests"].value == 0
    assert rows["added by the gateway"].value is not None
    assert "added by the gateway / by nginx" in rows
    assert rows["CPU of a request, a bare proxy in Python"].unit == "us"
    assert rows["CPU of an event, the gateway"].unit == "us"
    assert rows["gateway CPU, share of one core"].goal == "<= 0.5"


def test_a_gateway_that_does_not_get_its_core_has_no_verdict_on_it() -> None:
    assert cpu_share_row(0.4, 0.99, "here").met is True
    assert cpu_share_row(0.6, 0.99, "here").met is False
    starved = cpu_share_row(0.1, 0.3, "here")
    assert (starved.value, starved.met, starved.goal) == (None, None, "<= 0.5")
    assert starved.against == (
        "here; no verdict: only 30% of the events a second that come without it"
    )
