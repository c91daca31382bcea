"""``kvrun bench policy``: a decision on the hot path, and the activation of a large revision."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.bench.sweeping import seconds_to_sweep
from kvrun.policy.compile import CompiledRevision
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.revision import parse_revision

_DECISION = Goal(1.0, at_most=True)
_ACTIVATION = Goal(2.0, at_most=True)
_SWEEP = Goal(60.0, at_most=True)
_PAUSE_S = 0.0005
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


def run_policy_bench(rules: int, tenants: int, blocks: int) -> Report:
    """Compile ``rules`` documents for ``tenants`` tenants, look decisions up, then sweep."""
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
        revision = parse_revision({"policies/bench.yaml": text}, "bench", time.monotonic)
        return CompiledRevision(revision, facts).table(known)

    seconds = _best(activate)
    revision = parse_revision({"policies/bench.yaml": text}, "bench", time.monotonic)
    table = CompiledRevision(revision, facts).table(known)
    refs = (list(known) * (_LOOKUPS // tenants + 1))[:_LOOKUPS]

    def look_up() -> None:
        decide = table.decide
        for ref in refs:
            decide(ref, Tier.DISK)

    micros = _best(look_up) / _LOOKUPS * 1e6
    million_s = seconds_to_sweep(blocks, _PAUSE_S) / blocks * 1e6
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
            metric="sweep",
            value=million_s,
            unit="s for 1,000,000 blocks",
            against=f"measured with {blocks} small blocks, each in memory and as a file on disk",
            goal=str(_SWEEP),
            met=_SWEEP.holds(million_s),
        ),
    )
    return Report(bench="policy", machine=describe_machine(), commit=describe_commit(), rows=rows)


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
