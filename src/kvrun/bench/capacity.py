"""``kvrun bench capacity``: what the tiers hold of real traffic, simulated for an 80 GB GPU.

The requests are real, the order in which blocks leave a tier is the daemon's own code; GPU, sizes
and bandwidths are assumed, and every row says ``simulated``. Nothing here ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvrun.bench.capacity_orders import CostOrder, PlainLru, ReuseOrder, S3Fifo, reuse_and_cost
from kvrun.bench.capacity_sim import Order, Outcome, TierSize, simulate
from kvrun.bench.capacity_trace import (
    BLOCK_TOKENS,
    Request,
    Scope,
    count_blocks,
    ideal_hit_ratio,
    read_trace,
)
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.seal.envelope import sealed_size

_GB = 10**9
_TB = 10**12
_ORDERS: tuple[tuple[str, Callable[[int], Order] | None], ...] = (
    ("the daemon's", None),
    ("plain LRU", PlainLru),
    ("S3-FIFO", S3Fifo),
    ("with reuse", ReuseOrder),
    ("with cost", CostOrder),
    ("with reuse and cost", reuse_and_cost),
)
_OWNED = (Scope.TENANT, Scope.SESSION)
_CONTEXTS_GOAL = Goal(4)
_IDEAL_GOAL = Goal(0.98)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A class of model on GPUs of 80 GB.

    ``kv_bytes_per_token`` over all layers, ``weight_bytes`` over ``gpus``; of a GPU's memory the
    share ``usable`` is used by the engine, as vLLM does by default. ``recompute_tokens_s`` is how
    many prompt tokens the GPUs compute a second.
    """

    name: str
    kv_bytes_per_token: int
    weight_bytes: int
    gpus: int
    recompute_tokens_s: float
    assumed: str
    usable: float = 0.9
    gpu_bytes: int = 80 * _GB

    @property
    def cache_bytes(self) -> int:
        """What is left on the GPUs for blocks."""
        return int(self.gpus * self.usable * self.gpu_bytes) - self.weight_bytes

    @property
    def block_bytes(self) -> int:
        """A sealed block of ``BLOCK_TOKENS`` tokens."""
        return sealed_size(self.kv_bytes_per_token * BLOCK_TOKENS)


MODELS = (
    ServedModel("8B", 131_072, 16 * _GB, 1, 20_000, "one GPU, weights 16 GB in bf16"),
    ServedModel("70B", 327_680, 70 * _GB, 2, 5_000, "two GPUs, weights 70 GB in fp8, KV in bf16"),
)


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """What is simulated; sizes in bytes, bandwidths in bytes a second.

    Each size of disk is simulated by itself.
    """

    trace: Path
    memory_bytes: int = 256 * _GB
    disk_bytes: tuple[int, ...] = (8_000 * _GB, 20_000 * _GB)
    object_bytes: int = 10**18
    memory_bytes_s: float = 20e9
    disk_bytes_s: float = 5e9
    object_bytes_s: float = 2.5e9
    tenants: int = 1024
    models: tuple[ServedModel, ...] = MODELS


def run_capacity_bench(
    settings: CapacitySettings,
    expect: Callable[[int], None] = lambda requests: None,
    progress: Callable[[int], None] = lambda requests: None,
) -> Report:
    """Replay the trace for each model and scope.

    ``expect`` is told how many requests will be served in all, ``progress`` as they are. Raises
    TraceError.
    """
    requests = read_trace(settings.trace)
    runs = len(settings.models) * (1 + (1 + len(settings.disk_bytes)) * len(Scope))
    runs += len(_ORDERS) * len(_order_places(settings))
    expect(runs * len(requests))
    rows = []
    for scope in Scope:
        ratio = ideal_hit_ratio(requests, scope, settings.tenants)
        rows.append(
            Row(
                metric=f"ideal hit ratio, {_words(scope, settings)}",
                value=ratio,
                unit="of blocks",
                against=f"a cache without bounds; {len(requests)} requests, {settings.trace.name}",
            )
        )
    for model in settings.models:
        rows += _rows_of_model(settings, requests, model, progress)
    rows += _rows_of_orders(settings, requests, progress)
    return Report(
        bench="capacity", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def _rows_of_model(
    settings: CapacitySettings,
    requests: Sequence[Request],
    model: ServedModel,
    progress: Callable[[int], None],
) -> list[Row]:
    gpu, memory, disks, store = _tiers(settings, model)
    rows = []

    def run(scope: Scope, *sizes: TierSize) -> Outcome:
        return simulate(
            requests,
            sizes,
            block_bytes=model.block_bytes,
            scope=scope,
            tenants=settings.tenants,
            progress=progress,
        )

    alone = run(Scope.SESSION, gpu)
    for scope in Scope:
        ideal = ideal_hit_ratio(requests, scope, settings.tenants)
        above = run(scope, gpu, memory)
        where = f"{model.name}, {_words(scope, settings)}"
        rows.append(_trace_row(where, requests, scope, settings.tenants, model))
        if scope is Scope.SESSION:
            rows.append(_contexts_row(settings, model, alone, above))
            rows.append(_share_row(f"{where}: GPU alone", alone, ideal, None))
        rows.append(_share_row(f"{where}: GPU and memory", above, ideal, None))
        for disk in disks:
            full = run(scope, gpu, memory, disk, store)
            found = sum(full.hits[tier.name] for tier in (gpu, memory, disk)) / full.asked
            with_disk = f"{where}: with {disk.size_bytes / _TB:g} TB of disk"
            rows.append(_share_row(with_disk, full, ideal, _IDEAL_GOAL, found))
            if scope is Scope.SESSION:
                rows.append(_waiting_row(settings, model, full, with_disk))
    return rows


def _trace_row(
    where: str, requests: Sequence[Request], scope: Scope, tenants: int, model: ServedModel
) -> Row:
    """What a cache without bounds would hold in the end: how large a disk has to be."""
    blocks, again = count_blocks(requests, scope, tenants)
    return Row(
        metric=f"{where}: blocks of the trace",
        value=blocks * model.block_bytes / _TB,
        unit="TB",
        against=f"simulated; {blocks:,} blocks of {model.block_bytes / 1e6:.0f} MB, of which "
        f"{again * model.block_bytes / _TB:.1f} TB are asked for again",
    )


def _contexts_row(
    settings: CapacitySettings, model: ServedModel, alone: Outcome, above: Outcome
) -> Row:
    ratio = above.contexts["memory"] / max(1e-9, alone.contexts["gpu"])
    goal = _CONTEXTS_GOAL if model.name == "8B" else None
    return Row(
        metric=f"{model.name}: conversations held whole on GPU and memory",
        value=ratio,
        unit="x the GPU alone",
        against=f"simulated; {above.contexts['memory']:.0f} against {alone.contexts['gpu']:.0f}, "
        f"mean over the second half; {settings.memory_bytes / _GB:.0f} GB of RAM beside "
        f"{model.cache_bytes / _GB:.0f} GB for blocks ({model.assumed})",
        goal=str(goal) if goal else None,
        met=goal.holds(ratio) if goal else None,
    )


def _share_row(
    metric: str, outcome: Outcome, ideal: float, goal: Goal | None, ratio: float | None = None
) -> Row:
    ratio = outcome.hit_ratio if ratio is None else ratio
    share = ratio / ideal if ideal else 0.0
    tiers = ", ".join(
        f"{name} {hits / max(1, outcome.asked):.3f}" for name, hits in outcome.hits.items()
    )
    return Row(
        metric=metric,
        value=share,
        unit="of the ideal",
        against=f"simulated; hit ratio {ratio:.4f} of {ideal:.4f}; by tier: {tiers}",
        goal=str(goal) if goal else None,
        met=goal.holds(share) if goal else None,
    )


def _waiting_row(
    settings: CapacitySettings, model: ServedModel, outcome: Outcome, where: str
) -> Row:
    """What prompts waited for, blocks fetched and blocks computed, against computing all."""
    recompute_s = BLOCK_TOKENS / model.recompute_tokens_s
    fetch_s = {
        "gpu": 0.0,
        "memory": model.block_bytes / settings.memory_bytes_s,
        "disk": model.block_bytes / settings.disk_bytes_s,
        "object": model.block_bytes / settings.object_bytes_s,
    }
    spent = sum(hits * fetch_s[name] for name, hits in outcome.hits.items())
    missed = outcome.asked - sum(outcome.hits.values())
    value = (spent + missed * recompute_s) / max(1e-9, outcome.asked * recompute_s)
    costs = ", ".join(f"{name} {1000 * s:.0f}" for name, s in fetch_s.items() if s)
    return Row(
        metric=f"{where}: time for prompts",
        value=value,
        unit="of computing all",
        against=f"simulated; ms a block: computing {1000 * recompute_s:.0f}, fetching from {costs}",
    )


def _order_places(settings: CapacitySettings) -> list[tuple[ServedModel, Scope, TierSize]]:
    """Where orders are compared: a memory tier alone that is too small, and the smallest disk."""
    first, last = settings.models[0], settings.models[-1]
    _, memory, disks, _ = _tiers(settings, first)
    small = replace(memory, size_bytes=memory.size_bytes // 2)
    return [(first, Scope.TENANT, small), *((last, scope, disks[0]) for scope in _OWNED)]


def _rows_of_orders(
    settings: CapacitySettings, requests: Sequence[Request], progress: Callable[[int], None]
) -> list[Row]:
    """The daemon's order against others, each in one tier alone."""
    rows = []
    for model, scope, tier in _order_places(settings):
        for name, order in _ORDERS:
            outcome = simulate(
                requests,
                [tier],
                block_bytes=model.block_bytes,
                scope=scope,
                tenants=settings.tenants,
                order=order,
                progress=progress,
            )
            saved = outcome.cost_saved / max(1e-9, outcome.cost_asked)
            rows.append(
                Row(
                    metric=f"order of eviction: {name}",
                    value=outcome.hit_ratio,
                    unit="hit ratio",
                    against=f"simulated; {model.name}, {_words(scope, settings)}, "
                    f"{tier.size_bytes / _GB:,.0f} GB of {tier.name} alone; saves {saved:.4f} of "
                    "the computing, blocks late in a prompt counted for more",
                )
            )
    return rows


def _tiers(
    settings: CapacitySettings, model: ServedModel
) -> tuple[TierSize, TierSize, tuple[TierSize, ...], TierSize]:
    """GPU, memory, the disks to choose from, and Storage."""
    return (
        TierSize("gpu", model.cache_bytes),
        TierSize("memory", settings.memory_bytes),
        tuple(TierSize("disk", size) for size in settings.disk_bytes),
        TierSize("object", settings.object_bytes),
    )


def _words(scope: Scope, settings: CapacitySettings) -> str:
    return {
        Scope.SHARED: "one tenant",
        Scope.TENANT: f"{settings.tenants} tenants",
        Scope.SESSION: "by session",
    }[scope]
