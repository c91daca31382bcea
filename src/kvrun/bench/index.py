"""``kvrun bench index``: what the index of sealed blocks costs in memory."""

from __future__ import annotations

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.cache.measure import measure_index_bytes

_GOAL = Goal(250, at_most=True)


def run_index_bench(blocks: int) -> Report:
    """Index ``blocks`` blocks in both tiers and divide what they took."""
    value = measure_index_bytes(blocks)
    row = Row(
        metric="index",
        value=value,
        unit="bytes a block",
        against=f"{blocks} blocks, each in memory, on disk and in a pack",
        goal=str(_GOAL),
        met=_GOAL.holds(value),
    )
    return Report(bench="index", machine=describe_machine(), commit=describe_commit(), rows=(row,))
