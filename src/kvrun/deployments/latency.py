"""Time to the first byte, from the gateway's own histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvrun.config import KvrunConfig
from kvrun.launch.counters import read_gateway_metrics

_NAME = "kvrun_gateway_first_byte_seconds"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds to the first byte of an answer: quantiles of all answers since the start.

    They are read from a histogram, so each is where in its bucket it would be if the bucket were
    even; above the last bound it is that bound.
    """

    count: int
    p50_s: float
    p90_s: float
    p99_s: float


def first_byte(config: KvrunConfig) -> Latency | None:
    """What the gateway counts now; None where it does not answer or answered nobody yet."""
    found = read_gateway_metrics(config) or []
    bounds = sorted(
        (float(item.labels["le"]), item.value)
        for item in found
        if item.name == f"{_NAME}_bucket" and "le" in item.labels
    )
    if not bounds or not bounds[-1][1]:
        return None
    return Latency(int(bounds[-1][1]), *(quantile(bounds, share) for share in (0.5, 0.9, 0.99)))


def quantile(bounds: Sequence[tuple[float, float]], share: float) -> float:
    """The quantile in a histogram's cumulative buckets (upper bound, count), in rising order."""
    wanted = share * bounds[-1][1]
    lower, below = 0.0, 0.0
    for upper, count in bounds:
        if count >= wanted:
            if upper == float("inf"):
                return lower
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return lower + (upper - lower) * inside
        lower, below = upper, count
    return lower
