"""Health and metrics of a process that serves nothing else over HTTP."""

import http.client
import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from kvrun.telemetry.endpoint import EndpointError, Probes, Readiness, TelemetryEndpoint, serving
from kvrun.telemetry.exposition import Labelled, render


class Process:
    """Says what a test wants it to say."""

    def __init__(self) -> None:
        self.alive = True
        self.ready = Readiness(True, {"log": "ok"})
        self.fails = False

    def metrics(self) -> bytes:
        if self.fails:
            raise ValueError("a prompt")
        return b"kvrun_up 1\n"

    @property
    def probes(self) -> Probes:
        return Probes(lambda: self.alive, lambda: self.ready, self.metrics)


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def endpoint(process: Process) -> Iterator[TelemetryEndpoint]:
    opened = TelemetryEndpoint.on_port(process.probes, 0)
    yield opened
    opened.close()


def ask(port: int, path: str, method: str = "GET", host: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        assert "python" not in (answer.headers["Server"] or "").lower()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_says_how_the_process_is(process: Process, endpoint: TelemetryEndpoint) -> None:
    assert ask(endpoint.port, "/healthz") == (200, b'{"status":"ok"}')
    assert ask(endpoint.port, "/readyz") == (200, b'{"status":"ready","log":"ok"}')
    assert ask(endpoint.port, "/metrics?x=1") == (200, b"kvrun_up 1\n")
    process.alive, process.ready = False, Readiness(False, {"log": "cannot be written"})
    assert ask(endpoint.port, "/healthz")[0] == 503
    status, body = ask(endpoint.port, "/readyz")
    assert (status, json.loads(body)["log"]) == (503, "cannot be written")


def test_nothing_else_is_served(endpoint: TelemetryEndpoint) -> None:
    assert ask(endpoint.port, "/")[0] == 404
    assert ask(endpoint.port, "/metrics/../etc/passwd")[0] == 404
    assert ask(endpoint.port, "/metrics", "POST")[0] == 501


def test_what_fails_while_it_is_asked_is_quoted_nowhere(
    process: Process, endpoint: TelemetryEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    process.fails = True
    assert ask(endpoint.port, "/metrics") == (500, b'{"error":"ValueError"}')
    shown = capfd.readouterr()
    assert "prompt" not in shown.out + shown.err


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9100", "10.0.0.1", "127.0.0.1.evil"]
)
def test_a_browsers_page_under_another_name_is_refused(
    endpoint: TelemetryEndpoint, host: str
) -> None:
    assert ask(endpoint.port, "/metrics", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:9100", "[::1]:9100"])
def test_names_of_this_machine_are_served(endpoint: TelemetryEndpoint, host: str) -> None:
    assert ask(endpoint.port, "/metrics", host=host)[0] == 200


def test_clients_that_say_nothing_take_no_more_than_their_few_places(
    endpoint: TelemetryEndpoint,
) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(8)]
    try:
        # All places are taken: the next one is hung up on at once instead of waiting in a thread.
        with socket.create_connection(("127.0.0.1", endpoint.port)) as late:
            late.settimeout(10)
            assert late.recv(1) == b""
    finally:
        for client in silent:
            client.close()


def test_a_unix_socket_is_its_owners_alone_and_replaces_one_that_was_left(
    process: Process, short_folder: Path
) -> None:
    path = short_folder / "run" / "m.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(process.probes, port=None, socket_file=path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b'{"status":"ready","log":"ok"}')
    assert not path.exists()


def test_a_place_that_is_taken_is_named(process: Process, endpoint: TelemetryEndpoint) -> None:
    with pytest.raises(EndpointError, match=rf"127\.0\.0\.1:{endpoint.port}: Address already"):
        TelemetryEndpoint.on_port(process.probes, endpoint.port)


def test_families_of_several_deployments_become_one_each_with_their_labels() -> None:
    sources = []
    for name in ("chat", "search"):
        registry = CollectorRegistry()
        Counter("kvrun_things", "Things.", ("kind",), registry=registry).labels("a").inc(2)
        Gauge("kvrun_level", "Level.", registry=registry).set(1)
        sources.append(Labelled(registry, {"deployment": name}))
    text = render(*sources).decode()
    assert text.count("# TYPE kvrun_things_total counter") == 1
    found = {
        (sample.name, sample.labels["deployment"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["kvrun_things_total", "chat"] == found["kvrun_things_total", "search"] == 2
    assert found["kvrun_level", "search"] == 1
