"""A request that left no record is found by who else counted it; an honest log never is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import QUIET, Clock, sealed, signer

from kvrun.audit import AuditLog
from kvrun.audit.record import AuditEvent, Event
from kvrun.config import parse_config
from kvrun.control.alerts import Alert, AlertKind
from kvrun.control.plane import ControlPlane
from kvrun.control.reconcile import Counts, Finding, Sample, reconcile
from kvrun.control.rounds import RoundReport, run_round
from kvrun.control.schedule import JITTER, LONGEST_RETRY_S, next_delay
from kvrun.launch.counters import read_sample

ENGINE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} %d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 0
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop"} %d
vllm:request_success_total{engine="0",finished_reason="abort"} 1
"""
GATEWAY = """
# TYPE kvrun_gateway_requests counter
kvrun_gateway_requests_total{api="chat",status="200"} %d
kvrun_gateway_requests_total{api="chat",status="429"} 100
kvrun_gateway_requests_total{api="other",status="200"} 500
kvrun_gateway_requests_total{api="embeddings",status="200"} 2
# TYPE kvrun_gateway_uncached_requests counter
kvrun_gateway_uncached_requests_total %d
# TYPE kvrun_gateway_requests_in_flight gauge
kvrun_gateway_requests_in_flight 1
"""


def sample(finished: int, *, uncached: int = 0, in_flight: int = 0) -> Sample:
    return Sample(
        engine=Counts(finished=finished, in_flight=in_flight),
        gateway=Counts(finished=finished, in_flight=in_flight, uncached=uncached),
    )


def test_a_request_without_a_record_is_a_finding_of_both_sides() -> None:
    begin, end = sample(10), sample(20)
    assert reconcile("log", begin, end, 10) == []
    findings = reconcile("log", begin, end, 9)
    assert [(item.side, item.missing) for item in findings] == [("engine", 1), ("gateway", 1)]
    assert "at least 1 requests have no record" in findings[0].message


def test_what_was_under_way_or_went_on_without_a_claim_is_allowed_for() -> None:
    assert reconcile("log", sample(10, in_flight=3), sample(20), 7) == []
    assert reconcile("log", sample(10, uncached=1), sample(20, uncached=4), 7) == []
    assert reconcile("log", sample(10, in_flight=1), sample(20, uncached=1), 7) != []


def test_a_side_that_was_restarted_or_not_reached_shows_nothing() -> None:
    assert reconcile("log", sample(10), sample(5), 0) == []
    assert reconcile("log", Sample(), sample(5), 0) == []
    only_engine = Sample(engine=Counts(finished=9, in_flight=0))
    assert reconcile("log", sample(0), only_engine, 0) == []


@given(
    st.lists(st.sampled_from(["admit", "finish", "uncached"]), max_size=60),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_an_honest_log_gives_no_finding_wherever_the_interval_begins_and_ends(
    steps: list[str], first: int, second: int
) -> None:
    """A model of engine, gateway and log; a request is admitted on record before it finishes."""
    moments = []
    running: list[bool] = []
    admissions = finished = uncached = 0
    for what in ["", *steps]:
        if what == "admit":
            admissions += 1
            running.append(True)
        elif what == "uncached":
            uncached += 1
            running.append(False)
        elif what == "finish" and running:
            running.pop(0)
            finished += 1
        moments.append((sample(finished, uncached=uncached, in_flight=len(running)), admissions))
    low, high = sorted((min(first, len(steps)), min(second, len(steps))))
    begin, end = moments[low], moments[high]
    assert reconcile("log", begin[0], end[0], end[1] - begin[1]) == []


@contextmanager
def serving(pages: dict[str, str], *, key: str = "") -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = not key or self.headers.get("Authorization") == f"Bearer {key}"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(pages["metrics"].encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_counters_are_read_as_the_two_sides_state_them(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("kvk_test\n")
    with (
        serving({"metrics": GATEWAY % (9, 3)}, key="kvk_test") as port,
        serving({"metrics": ENGINE % (2, 7)}) as engine,
    ):
        text = f'[gateway]\nport = {port}\n[engine]\ntransport = "tcp"\nport = {engine}\n'
        engine_side = Counts(finished=8, in_flight=2)
        config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
        assert read_sample(config) == Sample(engine=engine_side), "the gateway wants a key"
        text += f'[audit]\nmetrics_key_file = "{key}"\n'
        config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
        assert read_sample(config) == Sample(
            engine=engine_side,
            gateway=Counts(finished=9, in_flight=1, uncached=5),  # embeddings carry no claim
        )


def test_an_omission_is_an_alert_that_does_not_stop_collection(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("kvk_test\n")
    pages = {"metrics": GATEWAY % (100, 0)}
    with serving(pages, key="kvk_test") as port:
        text = f'[audit]\nmetrics_key_file = "{key}"\n[gateway]\nport = {port}\n'
        config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
        plane = ControlPlane(config)

        def collect() -> RoundReport:
            return run_round(plane, reason="scheduled", count=lambda: read_sample(config))

        name = "default/default/here"
        log = AuditLog.open(
            config.layout.audit,
            log_id=name,
            signer=signer(name=name),
            now=Clock(),
            limits=QUIET,
        )
        assert collect().findings == []
        pages["metrics"] = GATEWAY % (105, 0)  # one of the five was under way
        log.append_durable(sealed(1))
        log.sign_checkpoint()
        (finding,) = run_round(
            plane, reason="scheduled", count=lambda: read_sample(config)
        ).findings
        assert (finding.side, finding.missing) == ("gateway", 4)
        (alert,) = plane.alerts.all()
        assert (alert.kind, alert.stops) == (AlertKind.OMISSION, False)
        log.append_durable(sealed(2))
        log.close()
        (report,) = collect().logs
        assert report.outcome.value == "collected"


class Round:
    """Rounds of the collector over a log and counters that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlane(parse_config("", {}, source=folder / "kvrun.toml"))
        self.log = AuditLog.open(
            self.plane.config.layout.audit,
            log_id="default/default/here",
            signer=signer(name="default/default/here"),
            now=Clock(),
            limits=QUIET,
        )
        self.finished, self.in_flight = 0, 5

    def run(self, *, finish: int, record: int) -> list[Finding]:
        self.finished += finish
        for _ in range(record):
            self.log.append_durable(AuditEvent(event=Event.ALLOCATED))
        self.log.sign_checkpoint()
        counted = sample(self.finished, in_flight=self.in_flight)
        return run_round(self.plane, reason="scheduled", count=lambda: counted).findings

    def waiting(self) -> list[Alert]:
        return [item for item in self.plane.alerts.all() if item.acknowledged_at is None]


def test_an_omission_is_found_however_it_is_spread(tmp_path: Path) -> None:
    rounds = Round(tmp_path)
    assert rounds.run(finish=0, record=0) == []
    found = [len(rounds.run(finish=6, record=4)) for _ in range(6)]
    # Two a round are fewer than the five under way; from the third round on they are more.
    assert found == [0, 0, 2, 2, 2, 2]
    assert [(item.about, item.count) for item in rounds.waiting()] == [
        ("engine", 7),
        ("gateway", 7),
    ]
    # Looked into: what was found is not found again, what follows is.
    log = rounds.waiting()[0].log
    rounds.plane.alarm.acknowledge(log, "a patched engine", start_over=False)
    assert [len(rounds.run(finish=6, record=4)) for _ in range(3)] == [0, 0, 2]
    assert [item.count for item in rounds.waiting()] == [1, 1]
    rounds.log.close()


def test_an_honest_log_over_many_rounds_and_restarts_gives_no_finding(tmp_path: Path) -> None:
    rounds = Round(tmp_path)
    for finish, record in [(0, 0), (6, 4), (2, 5), (6, 3), (3, 5)]:
        # What was under way is finished now, or is under way at the end: never more than five.
        assert rounds.run(finish=finish, record=record) == []
    rounds.finished = -4  # a restart: the counters begin again
    for _ in range(4):
        assert rounds.run(finish=4, record=4) == []
    rounds.log.close()


def test_the_wait_doubles_with_failures_and_never_falls_on_one_moment() -> None:
    assert next_delay(180, 0, 0.5) == 180
    assert [next_delay(180, failures, 0.5) for failures in (1, 2, 3)] == [5, 10, 20]
    assert next_delay(180, 10_000, 0.5) == LONGEST_RETRY_S
    assert next_delay(3600, 10_000, 0.5) == 3600
    assert next_delay(100, 0, 0.0) == pytest.approx(100 * (1 - JITTER))
    assert next_delay(100, 0, 1.0) == pytest.approx(100 * (1 + JITTER))
