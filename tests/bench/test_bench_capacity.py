"""``kvrun bench capacity`` counts right: against a cache without bounds, tier by tier."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import kvrun.cli.bench
from kvrun.bench.capacity import MODELS, CapacitySettings, run_capacity_bench
from kvrun.bench.capacity_orders import CostOrder, PlainLru, ReuseOrder, S3Fifo, reuse_and_cost
from kvrun.bench.capacity_sim import TierSize, simulate
from kvrun.bench.capacity_trace import (
    Request,
    Scope,
    TraceError,
    ideal_hit_ratio,
    infer_sessions,
    read_trace,
)

TRACE = Path(__file__).with_name("mooncake_excerpt.jsonl")
BLOCK = 100


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return read_trace(TRACE)


def run(requests, *blocks, scope=Scope.SHARED, order=None):
    names = ("gpu", "memory", "disk")
    sizes = [
        TierSize(name, count * BLOCK)
        for name, count in zip(names[: len(blocks)], blocks, strict=True)
    ]
    return simulate(requests, sizes, block_bytes=BLOCK, scope=scope, tenants=8, order=order)


def test_prompts_that_share_more_than_their_first_block_are_one_conversation():
    found = infer_sessions([(0, [1, 2, 3]), (1, [1, 4]), (2, [1, 2, 3, 5]), (3, [1]), (4, [1])])
    assert [request.session for request in found] == [0, 1, 0, 2, 3]


def test_the_ideal_counts_prefixes_within_a_scope():
    prompts = infer_sessions([(0, [1, 2, 3]), (1, [1, 4]), (2, [1, 2, 3, 5])])
    assert ideal_hit_ratio(prompts, Scope.SHARED, 8) == pytest.approx((1 + 3) / 9)
    assert ideal_hit_ratio(prompts, Scope.SESSION, 8) == pytest.approx(3 / 9)


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("order", [None, PlainLru, S3Fifo, ReuseOrder, CostOrder, reuse_and_cost])
def test_tiers_that_hold_all_reach_the_ideal_and_no_tier_exceeds_it(requests, scope, order):
    ideal = ideal_hit_ratio(requests, scope, 8)
    assert ideal > 0
    assert run(requests, 10**6, scope=scope, order=order).hit_ratio == pytest.approx(ideal)
    small = run(requests, 300, scope=scope, order=order)
    with_more = run(requests, 300, 900, scope=scope, order=order)
    assert 0 < small.hit_ratio <= with_more.hit_ratio <= ideal
    if order is None:
        # Heads outlive tails, so that what is below adds nothing to what the GPU has.
        assert small.hits["gpu"] == with_more.hits["gpu"]


def test_what_the_tiers_above_lost_is_found_below(requests):
    found = run(requests, 250, 400, 10**6)
    assert found.hit_ratio == pytest.approx(ideal_hit_ratio(requests, Scope.SHARED, 8))
    assert found.hits["disk"] > 0
    assert found.contexts["gpu"] < found.contexts["memory"] < found.contexts["disk"]


def test_a_prompt_that_the_gpu_cannot_hold_is_not_served():
    prompts = infer_sessions([(0, [1, 2, 3]), (1, [1, 2, 3])])
    assert run(prompts, 2).hit_ratio == 0
    assert run(prompts, 3).hit_ratio == pytest.approx(0.5)


def test_a_model_leaves_room_for_the_longest_prompt_of_the_trace():
    """126,195 tokens."""
    for model in MODELS:
        assert model.cache_bytes >= 247 * model.block_bytes


def test_the_command_replays_a_trace_and_says_that_it_simulates():
    app = typer.Typer()
    app.add_typer(kvrun.cli.bench.app, name="bench")
    done = CliRunner().invoke(app, ["bench", "capacity", "--trace", str(TRACE), "--json"])
    assert done.exit_code in (0, 1), done.output
    rows = json.loads(done.stdout)["rows"]
    for row in rows:
        assert "simulated" in row["against"] or row["metric"].startswith("ideal")
    # So short a trace fits each disk.
    shares = [row["value"] for row in rows if row["metric"].endswith("of disk")]
    assert shares == [pytest.approx(1)] * 12
    assert {row["metric"].rpartition(": ")[2] for row in rows if row["goal"] == ">= 0.98"} == {
        "with 8 TB of disk",
        "with 20 TB of disk",
    }
    held = [row["value"] for row in rows if row["metric"].endswith("blocks of the trace")]
    assert len(held) == 6
    assert all(0 < size < 8 for size in held)


def test_worth_is_what_a_block_costs_to_compute_again_and_heads_are_worth_their_tails():
    order = CostOrder(0)
    for slot in range(3):  # one prompt of three blocks, another of one
        order.add(slot, "t", 1, 1, 0.0)
        order.link(slot, "t", continues=slot - 1 if slot else -1)
    order.add(3, "t", 1, 1, 0.0)
    order.link(3, "t")
    leaving = []
    while (slot := order.victim("t", 1, 0.0)) != -1:
        order.remove(slot, "t", 1, 1)
        leaving.append(slot)
    assert leaving == [3, 2, 1, 0]


def test_what_was_used_again_outlives_what_came_later():
    order = ReuseOrder(4)
    for slot in range(4):
        order.add(slot, "t", 1, 1, 0.0)
        order.link(slot, "t")
    order.touch(0, "t")
    assert order.victim("t", 1, 0.0) == 1
    order.remove(1, "t", 1, 1)
    # Half of the tier is for what is new, so that it can be used again.
    assert order.victim("t", 1, 0.0) == 0


def test_every_request_is_counted_as_progress(requests):
    expected, seen = [], []
    settings = CapacitySettings(TRACE, disk_bytes=(10**13,), models=MODELS[:1])
    run_capacity_bench(settings, expected.append, seen.append)
    assert expected == [sum(seen)]


@pytest.mark.parametrize("line", [b"{}", b"no json", b'{"timestamp": 0, "hash_ids": [1]}', b"\xff"])
def test_a_file_that_is_no_trace_is_refused_by_line(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"timestamp": 0, "input_length": 9, "hash_ids": [1]}\n' + line + b"\n")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(path)
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "missing")
