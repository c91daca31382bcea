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


@pytest.fixture
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


def test_a_request_is_counted_by_what_it_sealed_opened_and_reused(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "alice")
    eventually(lambda: value(daemon, "kvrun_blocks_sealed_total") == 4, "the seals are counted")
    now = metrics(daemon)
    assert now["kvrun_cache_blocks", frozenset({("tier", "memory")})] == 4
    sealed = now["kvrun_sealed_bytes_total", frozenset()]
    assert sealed == now["kvrun_cache_bytes", frozenset({("tier", "memory")})] > 4 * 4096
    before = value(daemon, "kvrun_requests_admitted_total")
    answer = admit(daemon, engine, "alice", hashes(made))
    assert value(daemon, "kvrun_requests_admitted_total") == before + 1
    running = value(daemon, "kvrun_requests_running")
    assert engine.load(answer.handle, hashes(made)).plain == dict(made)
    engine.start(answer.handle, 16, 48)
    eventually(
        lambda: value(daemon, "kvrun_reused_tokens_total", tier="memory") == 48,
        "what was reused is counted",
    )
    assert value(daemon, "kvrun_reused_tokens_total", tier="gpu") == 16
    assert value(daemon, "kvrun_reused_tokens_total", tier="disk") == 0
    assert value(daemon, "kvrun_blocks_opened_total", tier="memory") == 4
    lost = engine.load(answer.handle, [secrets.token_bytes(32)])
    assert len(lost.failed) == 1
    assert value(daemon, "kvrun_blocks_failed_total") == 1
    engine.finish(answer.handle)
    eventually(lambda: value(daemon, "kvrun_requests_running") == running - 1, "the request ended")


def test_what_is_on_disk_is_counted_there(daemon: Daemon, engine: HandEngine) -> None:
    stored(daemon, engine, "alice", 3)
    daemon.admin("flush")
    assert value(daemon, "kvrun_cache_blocks", tier="disk") == 3
    assert value(daemon, "kvrun_cache_persisted_blocks_total") == 3
    daemon.admin("erase_session", tenant="alice", session="default")
    assert value(daemon, "kvrun_cache_blocks", tier="disk") == 0
    assert value(daemon, "kvrun_cache_bytes", tier="disk") == 0
    assert value(daemon, "kvrun_cache_blocks", tier="memory") == 0


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
    denied(daemon, engine)
    counted = {
        other: value(daemon, "kvrun_requests_denied_total", reason=other) for other in Denial
    }
    assert counted == dict.fromkeys(Denial, 0) | {reason: 1}


def test_erasures_are_counted_when_they_are_certified(daemon: Daemon, engine: HandEngine) -> None:
    stored(daemon, engine, "alice")
    daemon.admin("erase_session", tenant="alice", session="default")
    assert value(daemon, "kvrun_erasures_total", kind="session", outcome="certified") == 1
    assert value(daemon, "kvrun_erasures_total", kind="session", outcome="failed") == 0
    assert value(daemon, "kvrun_erasure_seconds_count") == 1
    assert value(daemon, "kvrun_erasures_unfinished") == 0


def test_tenants_are_the_largest_few_by_pseudonym_and_the_others_together(
    daemon: Daemon, engine: HandEngine
) -> None:
    names = {"alice": 5, "bob": 3, "carol": 2, "dave": 1}
    for name, count in names.items():
        stored(daemon, engine, name, count)
    _, text = ask(daemon, "/metrics")
    assert not any(name in text for name in names)
    shown = {
        dict(labels)["tenant_ref"]: blocks_held
        for (name, labels), blocks_held in metrics(daemon).items()
        if name == "kvrun_tenant_blocks"
    }
    assert shown.pop("other") == 3
    assert sorted(shown.values()) == [3, 5]


def test_readiness_follows_the_log_and_health_the_loop(daemon: Daemon) -> None:
    assert ask(daemon, "/healthz")[0] == 200
    status, body = ask(daemon, "/readyz")
    assert (status, body) == (
        200,
        '{"status":"ready","log":"ok","lease":"ok","engine":"not connected"}',
    )
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        admit(daemon, engine, "alice", hashes(blocks(1)))
        assert '"engine":"connected"' in ask(daemon, "/readyz")[1]
        assert value(daemon, "kvrun_engine_connected") == 1
        assert value(daemon, "kvrun_sessions") == 1
        assert value(daemon, "kvrun_key_lease_valid") == 1
        assert value(daemon, "kvrun_audit_available") == 1
        assert value(daemon, "kvrun_audit_uncollected_bytes") > 0
