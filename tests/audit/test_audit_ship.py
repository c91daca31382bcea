"""Shipping: every record at least once, resumed, whatever the receiver and the log do meanwhile."""

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from simulator import LOG_ID, QUIET, Clock, honest, rewrite_with_the_key, sealed, signer

from kvrun.audit import AuditLimits, AuditLog
from kvrun.audit.errors import AuditError
from kvrun.audit.export import ExportFormat
from kvrun.audit.record import Record, as_line
from kvrun.audit.ship import Backoff, DeliveryError, ShipError, Shipper
from kvrun.audit.sinks import FileSink, OtlpSink, open_sink, parse_headers


class Receiver:
    """An OTLP/HTTP receiver that reads requests with the protocol's own definitions."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers)))
                status, headers, answer = (200, {}, b"{}")
                if receiver.answers:
                    status, headers, answer = receiver.answers.pop(0)
                if status == 200:
                    assert self.headers["Content-Type"] == "application/json"
                    receiver.take(json.loads(gzip.decompress(data)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def take(self, body: dict[str, object]) -> None:
        # Fails on a field that the protocol does not have.
        request = json_format.ParseDict(body, ExportLogsServiceRequest())
        for resource in request.resource_logs:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert names == {"service.name": "kvrun", "kvrun.log": LOG_ID}
            for scope in resource.scope_logs:
                for log in scope.log_records:
                    self.bodies.append(log.body.string_value)
                    record = json.loads(log.body.string_value)
                    assert log.event_name == f"kvrun.audit.{record['event']}"
                    assert log.time_unix_nano > 1_600_000_000 * 10**9
                    attributes = {item.key: item.value for item in log.attributes}
                    uid = attributes["log.record.uid"].string_value
                    assert uid == f"{LOG_ID}#{record['seq']}"
                    assert attributes["kvrun.seq"].int_value == record["seq"]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.close()


class Recorded:
    """A sink in memory that can fail."""

    name = "recorded"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.failures = 0
        self.largest = 0

    def deliver(self, records: list[Record]) -> int:
        if self.failures:
            self.failures -= 1
            raise DeliveryError("away", after_s=7.0 if self.failures == 1 else 0.0)
        self.largest = max(self.largest, len(records))
        self.lines += [as_line(record).encode() for record in records]
        return 0


class Waits:
    """Counts pauses instead of making them, and says stop after so many real ones."""

    def __init__(self, stop_after: int = 1000, on_pause: Callable[[], None] = lambda: None) -> None:
        self.pauses: list[float] = []
        self.stop_after = stop_after
        self.on_pause = on_pause

    def __call__(self, seconds: float) -> bool:
        if seconds:
            self.pauses.append(seconds)
            self.on_pause()
        return len(self.pauses) >= self.stop_after


def test_it_ships_everything_once_and_then_only_what_is_new(tmp_path: Path) -> None:
    world = honest(tmp_path)
    place, first, second = tmp_path / "place", Recorded(), Recorded()
    Shipper(world.folder, first, place, batch_records=7).run(wait=Waits(), follow=False)
    assert first.lines == world.lines()
    assert first.largest == 7
    before = len(world.lines())
    log = AuditLog.open(world.folder, log_id=LOG_ID, signer=signer(), now=world.clock, limits=QUIET)
    log.append_durable(sealed(99))
    Shipper(world.folder, second, place).run(wait=Waits(), follow=False)
    assert second.lines == world.lines()[before:]
    log.close()


def test_it_follows_a_live_log_over_its_segments(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = AuditLog.open(
        folder,
        log_id=LOG_ID,
        signer=signer(),
        now=Clock(),
        limits=AuditLimits(group_seconds=60, segment_bytes=2000, heartbeat_seconds=3600),
    )
    sink = Recorded()
    more = iter(range(40))

    def append_one() -> None:
        number = next(more, None)
        if number is not None:
            log.append_durable(sealed(number))

    Shipper(folder, sink, tmp_path / "place").run(wait=Waits(45, append_one), follow=True)
    log.close()
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().split()]
    assert len(list(folder.glob("*.jsonl"))) > 3
    assert sink.lines == lines[:41]


def test_a_receiver_that_is_away_is_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    world = honest(tmp_path)
    sink, waits = Recorded(), Waits()
    sink.failures = 9
    said: list[str] = []
    Shipper(world.folder, sink, tmp_path / "place").run(
        wait=waits,
        follow=False,
        backoff=Backoff(1, 60),
        on_failure=lambda error, _: said.append(error.message),
    )
    assert waits.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert said == ["away"] * 9
    assert sink.lines == world.lines()


def test_a_receiver_may_ask_for_a_longer_pause(tmp_path: Path) -> None:
    world = honest(tmp_path)
    sink, waits = Recorded(), Waits()
    sink.failures = 2
    Shipper(world.folder, sink, tmp_path / "place").run(wait=waits, follow=False)
    assert waits.pauses == [7, 2]


def test_a_log_that_was_rewritten_since_is_not_shipped_on(tmp_path: Path) -> None:
    world = honest(tmp_path)
    place = tmp_path / "place"
    shipper = Shipper(world.folder, Recorded(), place, batch_records=40)
    shipper.step()
    rewrite_with_the_key(world)
    with pytest.raises(ShipError, match="the log was changed since"):
        Shipper(world.folder, Recorded(), place).run(wait=Waits(), follow=False)


def test_another_logs_records_are_not_shipped_on(tmp_path: Path) -> None:
    place = tmp_path / "place"
    Shipper(honest(tmp_path).folder, Recorded(), place, batch_records=9).step()
    other = honest(tmp_path / "other", "kvrun.test/instances/two")
    with pytest.raises(ShipError, match="shipped was"):
        Shipper(other.folder, Recorded(), place).step()


def test_records_that_are_gone_are_named_and_skipped_only_when_asked(tmp_path: Path) -> None:
    world = honest(tmp_path)
    first = world.segments()[0]
    gone = len(first.read_bytes().splitlines())
    first.unlink()
    with pytest.raises(ShipError, match=f"records 0 to {gone - 1} are no longer here"):
        Shipper(world.folder, Recorded(), tmp_path / "place").step()
    sink = Recorded()
    shipper = Shipper(world.folder, sink, tmp_path / "place", skip_missing=True)
    shipper.run(wait=Waits(), follow=False)
    assert sink.lines == world.lines()


def test_a_place_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text('{"log":1}')
    with pytest.raises(ShipError, match="how far the log was shipped"):
        Shipper(honest(tmp_path).folder, Recorded(), place)


def test_otlp_takes_every_record_by_the_protocols_own_definitions(
    tmp_path: Path, receiver: Receiver
) -> None:
    world = honest(tmp_path)
    sink = OtlpSink(receiver.url, {"Authorization": "Bearer t"})
    Shipper(world.folder, sink, tmp_path / "place", batch_records=20).run(
        wait=Waits(), follow=False
    )
    sink.close()
    assert [body.encode() for body in receiver.bodies] == world.lines()
    assert {path for path, _ in receiver.requests} == {"/v1/logs"}
    assert all(headers["Authorization"] == "Bearer t" for _, headers in receiver.requests)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_otlp_tries_again_what_the_protocol_calls_retryable(
    tmp_path: Path, receiver: Receiver, status: int
) -> None:
    world = honest(tmp_path)
    receiver.answers = [(status, {"Retry-After": "9"}, b""), (status, {}, b"x" * 100_000)]
    waits = Waits()
    Shipper(world.folder, OtlpSink(receiver.url), tmp_path / "place").run(wait=waits, follow=False)
    assert waits.pauses == [9, 2]
    assert [body.encode() for body in receiver.bodies] == world.lines()


@pytest.mark.parametrize("status", [301, 400, 401, 404, 500])
def test_otlp_stops_at_other_answers_and_follows_no_redirect(
    tmp_path: Path, receiver: Receiver, status: int
) -> None:
    world = honest(tmp_path)
    receiver.answers = [(status, {"Location": receiver.url}, b"not you")]
    shipper = Shipper(world.folder, OtlpSink(receiver.url), tmp_path / "place")
    with pytest.raises(ShipError, match=f"status {status} not you"):
        shipper.run(wait=Waits(), follow=False)
    assert shipper.next_seq == 0
    assert len(receiver.requests) == 1


def test_what_a_receiver_refuses_for_good_is_counted_and_not_sent_again(
    tmp_path: Path, receiver: Receiver
) -> None:
    world = honest(tmp_path)
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records = 3
    receiver.answers = [(200, {}, json_format.MessageToJson(answer).encode())]
    shipper = Shipper(world.folder, OtlpSink(receiver.url), tmp_path / "place")
    shipper.run(wait=Waits(), follow=False)
    assert shipper.refused == 3
    assert len(receiver.bodies) == len(world.lines())


def test_a_receiver_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    sink = OtlpSink("http://127.0.0.1:9", timeout_s=1)
    with pytest.raises(DeliveryError, match="does not answer"):
        sink.deliver([honest_record(tmp_path)])


def test_a_file_gets_whole_lines_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    world = honest(tmp_path)
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"earlier\n{torn")
    Shipper(world.folder, FileSink(out, ExportFormat.JSONL), tmp_path / "place").run(
        wait=Waits(), follow=False
    )
    assert out.read_bytes().splitlines() == [b"earlier", *world.lines()]


def test_a_file_that_is_no_shipped_log_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "image"
    out.write_bytes(bytes(100_000))
    with pytest.raises(ShipError, match="not a shipped log"):
        FileSink(out, ExportFormat.JSONL)
    assert out.read_bytes() == bytes(100_000)


def test_a_csv_file_has_one_header(tmp_path: Path) -> None:
    world = honest(tmp_path)
    for _ in range(2):
        sink = FileSink(tmp_path / "out.csv", ExportFormat.CSV)
        place = tmp_path / "place"
        Shipper(world.folder, sink, place, batch_records=31).run(wait=Waits(), follow=False)
        place.unlink()
        sink.close()
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.startswith("seq,") for line in lines] == [True, *[False] * 124]


@pytest.mark.parametrize(
    "target", ["", "file:", "otlp:", "otlp:ftp://x", "otlp:http://u:p@x", "syslog:x", "stdout:x"]
)
def test_a_target_that_is_none_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ShipError):
        open_sink(target, ExportFormat.JSONL, stdout=sys.stdout.buffer, environment={})


def test_headers_come_from_the_environment_as_opentelemetry_writes_them() -> None:
    assert parse_headers("api-key=a%2Cb, x=1") == {"api-key": "a,b", "x": "1"}
    for wrong in ("api-key", "a b=1", "x=%0d%0aEvil:1"):
        with pytest.raises(AuditError):
            parse_headers(wrong)


def test_a_shipper_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """It may send a batch again; the file still holds every record in order."""
    world = honest(tmp_path)
    out = tmp_path / "out.jsonl"
    program = "from kvrun.cli.audit import app; app()"
    command = [sys.executable, "-c", program, "ship", "--folder", str(world.folder)]
    command += ["--to", f"file:{out}"]
    for _ in range(2):
        before = out.stat().st_size if out.exists() else 0
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        # It ships on until it is killed, so the log must have something new for it each time.
        more = AuditLog.open(world.folder, log_id=LOG_ID, signer=signer(), now=Clock())
        while not out.exists() or out.stat().st_size <= before:
            more.append_durable(sealed(1))
            assert child.poll() is None
        child.kill()
        child.wait()
        more.close()
        with out.open("ab") as file:
            file.write(b'{"torn":')
    done = subprocess.run([*command, "--once"], capture_output=True, text=True, check=True)
    assert f"the next is record {len(world.lines())}" in done.stderr
    seen = list(dict.fromkeys(out.read_bytes().splitlines()))
    assert seen == world.lines()


def honest_record(tmp_path: Path) -> Record:
    from kvrun.audit.cursor import read_records

    return next(read_records(honest(tmp_path).folder))
