"""``kvrun bench policy``: a decision on the hot path, the activation of a large revision, a sweep,
and what requests notice of the two."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal, compare_pairs
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.bench.sweeping import (
    MATCHED_NAMES,
    OPENED_BLOCKS,
    OPENED_BYTES,
    REQUESTS,
    Beside,
    longest_wait_ms,
    requests_beside_a_sweep,
    seconds_to_sweep,
    unlink_us,
)
from kvrun.instance.sweeping import REST_WHILE_ASKED, SWEEP_REST
from kvrun.policy.compile import CompiledRevision, Placement
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.revision import parse_revision

_DECISION = Goal(1.0, at_most=True)
_ACTIVATION = Goal(2.0, at_most=True)
_SWEEP = Goal(60.0, at_most=True)
_WAIT = Goal(50.0, at_most=True)
_BESIDE = Goal(1.05, at_most=True)
_OF_TTFT = Goal(1.05, at_most=True)
_PAIRS = 25
_CLASSES = 50
_LOOKUPS = 200_000
_RUNS = 5
_DOCUMENT = """\
---
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata:
  name: rule-{number}
match:
  classes: [class-{group}]
  labels:
    plan: [gold, silver]
{when}allow:
  tiers: [gpu, memory, disk, object]
  regions: ["eu-*"]
  ttl: 7d
reason: benchmark
"""


def run_policy_bench(rules: int, tenants: int, blocks: int, ttft_ms: float | None = None) -> Report:
    """Compile ``rules`` documents for ``tenants`` tenants, look decisions up, then sweep.

    ``ttft_ms``: the engine's time to first token of a reloaded prompt, measured elsewhere.
    """
    text = "".join(_document(number) for number in range(rules)).encode()
    known = {
        f"{number:032x}": Tenant(
            f"class-{number % _CLASSES}",
            "eu-west-1",
            (("account", str(number)), ("plan", ("gold", "silver", "free")[number % 3])),
        )
        for number in range(tenants)
    }
    facts = InstanceFacts(region="eu-west-1")

    def activate() -> object:
        revision = parse_revision({"policies/bench.yaml": text}, "bench", time.thread_time)
        return CompiledRevision(revision, facts).table(known)

    seconds = _best(activate)
    revision = parse_revision({"policies/bench.yaml": text}, "bench", time.thread_time)
    table = CompiledRevision(revision, facts).table(known)
    refs = (list(known) * (_LOOKUPS // tenants + 1))[:_LOOKUPS]

    def look_up() -> None:
        # As the daemon asks before each placement: the tenant's row by the revision in force.
        for ref in refs:
            Placement(table.revision, table.row(ref)).allows(Tier.DISK)

    micros = _best(look_up) / _LOOKUPS * 1e6
    waited_ms, asked = longest_wait_ms(lambda: table.decide(refs[0], Tier.DISK), activate)
    million_s = seconds_to_sweep(blocks, SWEEP_REST) / blocks * 1e6
    beside = requests_beside_a_sweep(blocks, SWEEP_REST, _PAIRS)
    rows = (
        Row(
            metric="decision",
            value=micros,
            unit="us",
            against=f"a look-up among {tenants} tenants, best of {_RUNS} runs of {_LOOKUPS}",
            goal=str(_DECISION),
            met=_DECISION.holds(micros),
        ),
        Row(
            metric="activation",
            value=seconds,
            unit="s",
            against=f"read, check and compile {rules} policies, one in ten with a condition, for "
            f"{tenants} tenants; best of {_RUNS}",
            goal=str(_ACTIVATION),
            met=_ACTIVATION.holds(seconds),
        ),
        Row(
            metric="longest wait for a decision during an activation",
            value=waited_ms,
            unit="ms",
            against=f"one after the other, {asked} of them, by the revision in force",
            goal=str(_WAIT),
            met=_WAIT.holds(waited_ms),
        ),
        Row(
            metric="sweep",
            value=million_s,
            unit="s for 1,000,000 blocks",
            against=f"measured with {blocks} small blocks, each in memory and as a file just "
            f"written; it waits for {SWEEP_REST:.0%} of the processor's time that it works, "
            "included; nobody asks for blocks meanwhile",
            goal=str(_SWEEP),
            met=_SWEEP.holds(million_s),
        ),
        Row(
            metric="a file that was written back, unlinked",
            value=unlink_us(),
            unit="us",
            against="what the file system takes longer for files that are there for long",
        ),
        *_beside(beside.pairs, ttft_ms),
        _meanwhile(beside),
    )
    return Report(bench="policy", machine=describe_machine(), commit=describe_commit(), rows=rows)


def _beside(pairs: Sequence[tuple[float, float]], ttft_ms: float | None) -> tuple[Row, ...]:
    """What a sweep adds to a request's part in the daemon, and so to its time to first token.

    The goal is about the latter; where no such time is given, the former has to meet it alone.
    What an engine loses that computes on the cores that the sweep works on is not measured.
    """
    part = ratio_row(
        "a request's part in the daemon, beside a sweep",
        compare_pairs(pairs, rng=random.Random(0)),  # noqa: S311 - draws bootstrap samples
        unit="ratio",
        against=f"without one; {MATCHED_NAMES} blocks looked up, {OPENED_BLOCKS} of "
        f"{OPENED_BYTES >> 10} KiB opened, one request after the other",
        goal=_BESIDE if ttft_ms is None else None,
    )
    if ttft_ms is None:
        return (part,)
    with_sweep = [(ttft_ms + beside - alone, ttft_ms) for beside, alone in pairs]
    return (
        part,
        ratio_row(
            "TTFT of a reloaded prompt, beside a sweep",
            compare_pairs(with_sweep, rng=random.Random(0)),  # noqa: S311 - draws bootstrap samples
            unit="ratio",
            against=f"a TTFT of {ttft_ms:g} ms, given, and what the requests above took longer; "
            "the engine computes on a device or cores of its own",
            goal=_OF_TTFT,
        ),
    )


def _meanwhile(beside: Beside) -> Row:
    """How long a sweep takes where requests come all the time, and they beside it."""
    took = f"of {statistics.median(beside.meanwhile_ms):.3g} ms " if beside.meanwhile_ms else ""
    return Row(
        metric="sweep beside these requests",
        value=beside.million_s,
        unit="s for 1,000,000 blocks",
        against=f"{len(beside.meanwhile_ms) * REQUESTS} requests {took}in the median, one after "
        f"the other until it is through; it waits for {REST_WHILE_ASKED:g} times the processor's "
        "time that it works while they look up or read blocks",
        goal=str(_SWEEP),
        met=None if beside.million_s is None else _SWEEP.holds(beside.million_s),
    )


def _document(number: int) -> str:
    when = "" if number % 10 else "when: 'tenant.region.startsWith(\"eu-\")'\n"
    return _DOCUMENT.format(number=number, group=number % _CLASSES, when=when)


def _best(run: Callable[[], object]) -> float:
    took = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)
