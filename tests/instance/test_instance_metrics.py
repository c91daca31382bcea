"""The daemon's metrics count what happened, and name nobody."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_instance_requests import admit, blocks, hashes, stored

from kvrun.instance.protocol import Verdict
from kvrun.instance.totals import Denial
from support.byhand import HandEngine
from support.client import eventually, grant
from support.daemon import Daemon
from support.unix_http import get

Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]
OWN = {"workspace": "default", "deployment": "default"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="kvr-", dir="/tmp") as folder:
        running = Daemon(
            Path(folder), settings='metrics_socket = "d/run/metrics.sock"\nmetrics_tenants = 2\n'
        )
        running.start()
        yield running
        running.stop()


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[HandEngine]:
    with HandEngine(daemon.socket, daemon.engine_token) as playing:
        yield playing


def ask(daemon: Daemon, path: str) -> tuple[int, str]:
    return get(daemon.data / "run" / "metrics.sock", path)


def metrics(daemon: Daemon) -> Metrics:
    status, text = ask(daemon, "/metrics")
    assert status == 200
    found: Metrics = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.items() >= OWN.items(), sample
            labels = frozenset(sample.labels.items()) - frozenset(OWN.items())
            found[sample.name, labels] = sample.value
    return found


def value(daemon: Daemon, name: str, **labels: str) -> float:
    return metrics(daemon)[name, frozenset(labels.items())]


class Since:
    """How much a metric grew since this was made."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._before = metrics(daemon)

    def __call__(self, name: str, **labels: str) -> float:
        before = self._before[name, frozenset(labels.items())]
        return value(self._daemon, name, **labels) - before


def test_a_request_is_counted_by_what_it_sealed_opened_and_reused(
    daemon: Daemon, engine: HandEngine
) -> None:
    since = Since(daemon)
    made = stored(daemon, engine, "alice")
    eventually(lambda: since("kvrun_blocks_sealed_total") == 4, "the seals are counted")
    assert since("kvrun_cache_blocks", tier="memory") == 4
    sealed = since("kvrun_sealed_bytes_total")
    assert sealed == since("kvrun_cache_bytes", tier="memory") > 4 * 4096
    admitted, running = since("kvrun_requests_admitted_total"), since("kvrun_requests_running")
    answer = admit(daemon, engine, "alice", hashes(made))
    assert since("kvrun_requests_admitted_total") == admitted + 1
    assert since("kvrun_requests_running") == running + 1
    assert engine.load(answer.handle, hashes(made)).plain == dict(made)
    engine.start(answer.handle, 16, 48)
    eventually(
        lambda: since("kvrun_reused_tokens_total", tier="memory") == 48,
        "what was reused is counted",
    )
    assert since("kvrun_reused_tokens_total", tier="gpu") == 16
    assert since("kvrun_reused_tokens_total", tier="disk") == 0
    assert since("kvrun_blocks_opened_total", tier="memory") == 4
    lost = engine.load(answer.handle, [secrets.token_bytes(32)])
    assert len(lost.failed) == 1
    eventually(lambda: since("kvrun_blocks_failed_total") == 1, "the failure is counted")
    engine.finish(answer.handle)
    eventually(lambda: since("kvrun_requests_running") == running, "the request ended")


def test_what_is_on_disk_is_counted_there(daemon: Daemon, engine: HandEngine) -> None:
    daemon.admin("flush")
    since = Since(daemon)
    stored(daemon, engine, "bertha", 3)
    daemon.admin("flush")
    assert since("kvrun_cache_blocks", tier="disk") == 3
    assert since("kvrun_cache_persisted_blocks_total") == 3
    daemon.admin("erase_session", tenant="bertha", session="default")
    for tier in ("memory", "disk"):
        assert since("kvrun_cache_blocks", tier=tier) == 0
        assert since("kvrun_cache_bytes", tier=tier) == 0


def _foreign(daemon: Daemon, engine: HandEngine) -> None:
    granted = grant(daemon, "alice")
    claim = daemon.claim("alice", granted.salt, 1, deployment="another")
    assert engine.match(claim, granted.salt).verdict is Verdict.DENIED


def _replayed(daemon: Daemon, engine: HandEngine) -> None:
    granted = grant(daemon, "alice")
    claim = daemon.claim("alice", granted.salt, granted.generation)
    assert engine.match(claim, granted.salt).verdict is Verdict.ADMITTED
    assert engine.match(claim, granted.salt).verdict is Verdict.DENIED


def _erased(daemon: Daemon, engine: HandEngine) -> None:
    granted = grant(daemon, "alice")
    claim = daemon.claim("alice", granted.salt, granted.generation)
    daemon.admin("erase_session", tenant="alice", session="default")
    assert engine.match(claim, granted.salt).verdict is Verdict.DENIED


@pytest.mark.parametrize(
    ("denied", "reason"),
    [
        (_foreign, Denial.CLAIM),
        (_replayed, Denial.REPLAYED),
        (_erased, Denial.KEY_DESTROYED),
    ],
)
def test_a_denied_request_is_counted_by_the_class_of_its_reason(
    daemon: Daemon,
    engine: HandEngine,
    denied: Callable[[Daemon, HandEngine], None],
    reason: Denial,
) -> None:
    since = Since(daemon)
    denied(daemon, engine)
    counted = {other: since("kvrun_requests_denied_total", reason=other) for other in Denial}
    assert counted == dict.fromkeys(Denial, 0) | {reason: 1}


def test_erasures_are_counted_when_they_are_certified(daemon: Daemon, engine: HandEngine) -> None:
    since = Since(daemon)
    stored(daemon, engine, "erased")
    daemon.admin("erase_session", tenant="erased", session="default")
    assert since("kvrun_erasures_total", kind="session", outcome="certified") == 1
    assert since("kvrun_erasures_total", kind="session", outcome="failed") == 0
    assert since("kvrun_erasure_seconds_count") == 1
    assert value(daemon, "kvrun_erasures_unfinished") == 0


def test_tenants_are_the_largest_few_by_pseudonym_and_the_others_together(
    daemon: Daemon, engine: HandEngine
) -> None:
    names = {"anna@x.example": 12, "bob@x.example": 9, "carol@x.example": 2, "dave@x.example": 1}
    for name, count in names.items():
        stored(daemon, engine, name, count)
    _, text = ask(daemon, "/metrics")
    assert not any(name in text for name in names)
    shown = {
        dict(labels)["tenant_ref"]: held
        for (name, labels), held in metrics(daemon).items()
        if name == "kvrun_tenant_blocks"
    }
    others = shown.pop("other")
    assert sorted(shown.values()) == [9, 12]
    assert others == value(daemon, "kvrun_cache_blocks", tier="memory") - 21 >= 3


def test_readiness_follows_the_log_and_health_the_loop(daemon: Daemon) -> None:
    assert ask(daemon, "/healthz")[0] == 200
    eventually(
        lambda: (
            ask(daemon, "/readyz")
            == (200, '{"status":"ready","log":"ok","lease":"ok","engine":"not connected"}')
        ),
        "no engine is connected",
    )
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        admit(daemon, engine, "alice", hashes(blocks(1)))
        assert '"engine":"connected"' in ask(daemon, "/readyz")[1]
        assert value(daemon, "kvrun_engine_connected") == 1
        assert value(daemon, "kvrun_sessions") >= 1
        assert value(daemon, "kvrun_key_lease_valid") == 1
        assert value(daemon, "kvrun_audit_available") == 1
        assert value(daemon, "kvrun_audit_uncollected_bytes") > 0
