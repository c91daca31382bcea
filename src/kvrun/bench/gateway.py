"""``kvrun bench gateway``: what the gateway adds over a bare engine, beside what nginx adds.

Engine and client are one small C program (``gateway_load.c``, compiled when the bench starts), so
that neither is the bottleneck. The proxy under test has one CPU to itself, engine and client share
another; every proxy is there all the time and idle while it is not its turn. Like a real engine
this one answers with a head at once and with its first event a little later, so that nothing it
does afterwards hides what a proxy costs.

First bytes: one stream, all arms interleaved. Streams: 128 at 50 events a second each; CPU time
comes from the kernel, queueing shows in the time that each event takes from engine to client. A
proxy in Python that only passes bytes on shows what the language costs by itself.
"""

import random
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from kvrun.bench.gateway_arms import Arm, Arms, BenchSetupError, Load
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal, Refusal, compare_pairs
from kvrun.bench.report import Report, Row, ratio_row

__all__ = ["BenchSetupError", "GatewayBenchSettings", "cpu_share_row", "run_gateway_bench"]

FIRST_BYTE_GOAL = Goal(2.0, at_most=True)
CPU_GOAL = Goal(0.5, at_most=True)
MIN_PASSED = 0.95
ONE_STREAM_EVENTS = 2
ONE_STREAM_INTERVAL_US = 2000

_DID = {
    "gateway": "one API key, claim signed",
    "bare": "a proxy in Python that checks nothing",
    "nginx": "one API key compared, the body untouched",
}


@dataclass(frozen=True, slots=True)
class GatewayBenchSettings:
    """How much is measured. Times in seconds, sizes in bytes."""

    pairs: int = 15
    one_stream_s: float = 0.6
    streams: int = 128
    events: int = 32
    event_interval_us: int = 20_000
    paced_s: float = 4.0
    paced_rounds: int = 3
    prompt_bytes: int = 1000
    max_spread: float = 0.5


def run_gateway_bench(
    settings: GatewayBenchSettings | None = None, *, rng: random.Random | None = None
) -> Report:
    """Measure and report. Raises BenchSetupError without a C compiler or a second CPU."""
    settings = settings or GatewayBenchSettings()
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-") as folder:
        arms = Arms(Path(folder), settings.prompt_bytes)
        rows = _Bench(settings, arms, rng or random.Random()).run()  # noqa: S311
    return Report(
        bench="gateway", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


def cpu_share_row(share: float, passed: float, where: str) -> Row:
    """The share of one core, held to its goal unless the events did not come through in time.

    ``passed`` is the rate of events through the gateway as a share of the rate without it. On a
    busy machine a gateway that does not get its core has a small share of it.
    """
    row = _goal_row("gateway CPU, share of one core", share, "cores", where, CPU_GOAL)
    if passed >= MIN_PASSED:
        return row
    why = f"no verdict: only {passed:.0%} of the events a second that come without it"
    return structs.replace(row, value=None, against=f"{where}; {why}", met=None)


@dataclass(slots=True)
class _Measured:
    """What one arm did in all its turns."""

    loads: list[Load] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def first_bytes(self) -> list[float]:
        return [load.first_byte_p50 for load in self.loads]

    @property
    def event_rate(self) -> float:
        """Events a second over all turns."""
        seconds = sum(load.seconds for load in self.loads)
        return sum(load.events for load in self.loads) / seconds

    def cpu_each(self, count: int) -> float:
        return self.cpu_s / max(1, count) * 1e6


class _Bench:
    def __init__(self, settings: GatewayBenchSettings, arms: Arms, rng: random.Random) -> None:
        self._settings = settings
        self._arms = arms
        self._rng = rng

    def run(self) -> list[Row]:
        settings = self._settings
        return self._first_byte_rows() + self._paced_rows(
            f"{settings.streams} streams, {1_000_000 // settings.event_interval_us} events/s each"
        )

    def _measure(
        self, events: int, interval_us: int, streams: int, seconds: float, rounds: int
    ) -> dict[str, _Measured]:
        """Every arm once a round, in an order drawn anew for each."""
        spread_us = events * interval_us if streams > 1 else 0
        with ExitStack() as stack:
            engine = stack.enter_context(self._arms.engine(events, interval_us))
            proxies = [
                stack.enter_context(start(engine))
                for start in (self._arms.gateway, self._arms.bare, self._arms.nginx)
            ]
            arms = [engine, *(arm for arm in proxies if arm is not None)]
            for arm in arms:
                self._arms.load(arm, streams, min(seconds, 1.0), spread_us=spread_us)
            measured = {arm.name: _Measured() for arm in arms}
            for _ in range(rounds):
                self._rng.shuffle(arms)
                for arm in arms:
                    self._turn(arm, measured[arm.name], streams, seconds, spread_us)
        return measured

    def _turn(
        self, arm: Arm, measured: _Measured, streams: int, seconds: float, spread_us: int
    ) -> None:
        before = arm.cpu_s()
        measured.loads.append(self._arms.load(arm, streams, seconds, spread_us=spread_us))
        measured.cpu_s += arm.cpu_s() - before

    def _first_byte_rows(self) -> list[Row]:
        settings = self._settings
        measured = self._measure(
            ONE_STREAM_EVENTS, ONE_STREAM_INTERVAL_US, 1, settings.one_stream_s, settings.pairs
        )
        direct = measured.pop("direct").first_bytes
        added = {
            name: [a - b for a, b in zip(arm.first_bytes, direct, strict=True)]
            for name, arm in measured.items()
        }
        rows = [_time_row("time to first byte, one stream, direct", direct)]
        rows += [_time_row(f"added by {_NAMES[name]}", added[name], _DID[name]) for name in added]
        rows += [
            _cpu_row(
                f"CPU of a request, {_NAMES[name]}",
                arm.cpu_each(sum(load.requests for load in arm.loads)),
                f"one stream, {ONE_STREAM_EVENTS} events",
            )
            for name, arm in measured.items()
        ]
        against = "nginx in the same run, interleaved"
        result = (
            compare_pairs(
                list(zip(added["gateway"], added["nginx"], strict=True)),
                rng=self._rng,
                max_spread=settings.max_spread,
            )
            if "nginx" in added
            else Refusal("nginx is not installed")
        )
        metric = "added by the gateway / by nginx"
        return [*rows, ratio_row(metric, result, unit="x", against=against, goal=FIRST_BYTE_GOAL)]

    def _paced_rows(self, where: str) -> list[Row]:
        settings = self._settings
        measured = self._measure(
            settings.events,
            settings.event_interval_us,
            settings.streams,
            settings.paced_s,
            settings.paced_rounds,
        )
        direct, gateway = measured.pop("direct"), measured["gateway"]
        share = gateway.cpu_s / sum(load.seconds for load in gateway.loads)
        failed = sum(load.errors for load in gateway.loads)
        cpu_rows = [
            _cpu_row(
                f"CPU of an event, {_NAMES[name]}",
                arm.cpu_each(sum(load.events for load in arm.loads)),
                f"{where}, {settings.events} to a request, whose cost is in it",
            )
            for name, arm in measured.items()
        ]
        return [
            cpu_share_row(share, gateway.event_rate / direct.event_rate, where),
            *cpu_rows,
            _goal_row(
                "time of an event, p99, gateway",
                statistics.median(load.event_p99 for load in gateway.loads) * 1000,
                "ms",
                f"{where}; longer than the pause between two events means queueing",
                Goal(settings.event_interval_us / 1000, at_most=True),
            ),
            _time_row("time of an event, p50, gateway", [load.event_p50 for load in gateway.loads]),
            _time_row("time of an event, p99, direct", [load.event_p99 for load in direct.loads]),
            _time_row("first byte, p50, gateway", gateway.first_bytes),
            _time_row("first byte, p50, direct", direct.first_bytes),
            _goal_row("failed requests", failed, "requests", where, Goal(0, at_most=True)),
        ]


_NAMES = {"gateway": "the gateway", "bare": "a bare proxy in Python", "nginx": "nginx"}


def _cpu_row(metric: str, microseconds: float, against: str) -> Row:
    return Row(metric=metric, value=microseconds, unit="us", against=against)


def _time_row(metric: str, seconds: list[float], against: str = "") -> Row:
    spread = f"{min(seconds) * 1000:.3g} to {max(seconds) * 1000:.3g} over {len(seconds)} runs"
    return Row(
        metric=metric,
        value=statistics.median(seconds) * 1000,
        unit="ms",
        against=f"{against}; {spread}" if against else spread,
    )


def _goal_row(metric: str, value: float, unit: str, against: str, goal: Goal) -> Row:
    return Row(
        metric=metric,
        value=value,
        unit=unit,
        against=against,
        goal=str(goal),
        met=goal.holds(value),
    )
