"""``/healthz``, ``/readyz`` and ``/metrics`` of a process that serves nothing else over HTTP.

A few threads of its own answer, on loopback or a Unix socket: whatever the process does goes on
beside it. A process with an HTTP server of its own mounts :func:`answer` there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec

from kvrun.errors import KvrunError
from kvrun.telemetry.exposition import CONTENT_TYPE_LATEST

PATHS = ("/healthz", "/readyz", "/metrics")


class EndpointError(KvrunError):
    """The place where metrics should be offered cannot be listened on."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a process can do its work now, and what stands in its way or not, by part."""

    ready: bool
    parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probes:
    """What a process says of itself. Called from the endpoint's threads.

    ``alive``: it still runs what it has to run; ``metrics`` is Prometheus's text format.
    """

    alive: Callable[[], bool]
    readiness: Callable[[], Readiness]
    metrics: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes


def answer(probes: Probes, path: str) -> Answer | None:
    """The answer to a GET of ``path``; None where nothing is served."""
    match path:
        case "/healthz":
            alive = probes.alive()
            return _json(200 if alive else 503, {"status": "ok" if alive else "stuck"})
        case "/readyz":
            found = probes.readiness()
            state = "ready" if found.ready else "not ready"
            return _json(200 if found.ready else 503, {"status": state, **found.parts})
        case "/metrics":
            return Answer(200, CONTENT_TYPE_LATEST, probes.metrics())
    return None


class TelemetryEndpoint:
    """Serves some probes until it is closed."""

    def __init__(self, server: socketserver.BaseServer, socket_file: Path | None) -> None:
        self._server = server
        self._socket_file = socket_file
        self._thread = threading.Thread(
            target=server.serve_forever, name="kvrun-telemetry", daemon=True
        )
        self._thread.start()

    @classmethod
    def on_port(cls, probes: Probes, port: int) -> TelemetryEndpoint:
        """Listen on 127.0.0.1. Raises EndpointError."""
        try:
            return cls(_TcpServer(("127.0.0.1", port), probes), None)
        except OSError as error:
            raise _refused(f"127.0.0.1:{port}", error) from None

    @classmethod
    def on_socket(cls, probes: Probes, path: Path) -> TelemetryEndpoint:
        """Listen on a Unix socket (mode 0600); one that is left of before is replaced.

        Raises EndpointError.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            return cls(_UnixServer(os.fspath(path), probes), path)
        except OSError as error:
            raise _refused(os.fspath(path), error) from None

    @property
    def port(self) -> int:
        """The TCP port."""
        address = self._server.server_address
        assert isinstance(address, tuple)
        return int(address[1])

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        if self._socket_file is not None:
            self._socket_file.unlink(missing_ok=True)


@contextlib.contextmanager
def serving(probes: Probes, *, port: int | None, socket_file: Path | None) -> Iterator[None]:
    """Serve the probes during the block wherever a place is given. Raises EndpointError."""
    with contextlib.ExitStack() as stack:
        if port is not None:
            stack.callback(TelemetryEndpoint.on_port(probes, port).close)
        if socket_file is not None:
            stack.callback(TelemetryEndpoint.on_socket(probes, socket_file).close)
        yield


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: Any, probes: Probes) -> None:
        self.probes = probes
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; more at once than are allowed are hung up on."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is nothing to write about."""


class _TcpServer(_Server):
    pass


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        before = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(before)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0
    server_version = "kvrun"
    sys_version = ""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        if isinstance(server, _TcpServer) and not _is_local(self.headers.get("Host", "")):
            # A page in a browser on this machine may have had a name of its own resolved to us.
            self._send(_json(403, {"error": "ask for 127.0.0.1 or localhost"}))
            return
        try:
            found = answer(server.probes, self.path.partition("?")[0])
        except Exception as error:
            found = _json(500, {"error": type(error).__name__})
        served = " ".join(PATHS)
        self._send(found or _json(404, {"error": f"served here: {served}"}))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: a scrape every few seconds is no news."""

    def _send(self, found: Answer) -> None:
        self.send_response(found.status)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(found.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(found.body)


def _is_local(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _json(status: int, content: Mapping[str, str]) -> Answer:
    return Answer(status, "application/json", msgspec.json.encode(content))


def _refused(place: str, error: OSError) -> EndpointError:
    return EndpointError(
        f"metrics cannot be offered at {place}: {error.strerror or error}",
        hint="Choose another place, or stop what uses this one.",
    )


_MAX_CONNECTIONS = 8
