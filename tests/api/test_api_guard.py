"""What every request passes first, around an application that only echoes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvrun.api.guard import Guard
from kvrun.config.control import ControlSection

SECRET = "a-path-of-the-machine/that-nobody-needs"


async def _echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"size": len(body), "id": request.state.request_id})


async def _fail(request: Request) -> Response:
    raise RuntimeError(SECRET)


def client(**settings: object) -> httpx.AsyncClient:
    app = Starlette(routes=[Route("/echo", _echo, methods=["GET", "POST"]), Route("/fail", _fail)])
    section = ControlSection(**settings)  # type: ignore[arg-type]
    app.add_middleware(Guard, settings=section)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost:80:90", "", "a b", "127.0.0.1:8090@x"],
)
async def test_a_host_that_is_not_ours_is_refused(host: str) -> None:
    async with client() as http:
        answer = await http.get("/echo", headers={"Host": host})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unknown_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8090", "127.0.0.1:1", "[::1]:8090"])
async def test_the_names_of_this_machine_are_ours(host: str) -> None:
    async with client() as http:
        assert (await http.get("/echo", headers={"Host": host})).status_code == 200


async def test_a_name_that_was_configured_is_ours_and_no_other_is() -> None:
    async with client(public_url="https://kv.example.com", allowed_hosts=("kv.internal",)) as http:
        for host, status in (
            ("kv.example.com", 200),
            ("kv.internal", 200),
            ("x.kv.internal", 400),
            ("example.com", 400),
        ):
            answer = await http.get("/echo", headers={"Host": host})
            assert answer.status_code == status, host


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8090", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:8090.evil.example", 403),
    ],
)
async def test_only_our_own_pages_may_change_anything(origin: str, status: int) -> None:
    async with client() as http:
        answer = await http.post("/echo", headers={"Origin": origin})
        assert answer.status_code == status
        assert (await http.get("/echo", headers={"Origin": origin})).status_code == 200


async def test_a_body_that_says_it_is_too_large_is_refused() -> None:
    async with client(max_body_bytes=1024) as http:
        answer = await http.post("/echo", content=b"x" * 1025)
        assert answer.status_code == 413
        assert answer.json()["code"] == "too_large"
        assert (await http.post("/echo", content=b"x" * 1024)).json()["size"] == 1024


async def test_a_body_that_does_not_say_its_size_is_read_no_further_than_the_limit() -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 512
            yield b"x" * 512
            await asyncio.sleep(0)

    async with client(max_body_bytes=1024) as http:
        answer = await http.post("/echo", content=endless())
    assert answer.status_code == 413
    assert read <= 2048


class Served:
    """The guard behind a real server: the bodies that came through, and how many requests ended."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = 0
        app = Starlette(routes=[Route("/list", self._take, methods=["POST"])])
        self._guard = Guard(app, ControlSection())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._guard(scope, receive, send)
        finally:
            self.ended += 1

    async def _take(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        return Response()


@contextmanager
def listening(app: Served) -> Iterator[int]:
    """The port on which a server as the control plane's answers."""
    config = uvicorn.Config(app, http="httptools", log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("length", "sent"),
    [
        ("Content-Length: 40", b"tenant,class\nalice,gold\n"),
        ("Transfer-Encoding: chunked", b"d\r\ntenant,class\n\r\n"),
    ],
    ids=["length", "chunked"],
)
def test_a_body_that_was_cut_off_is_not_taken_for_a_whole_one(length: str, sent: bytes) -> None:
    app = Served()
    with listening(app) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST /list HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n\r\n"
            connection.sendall(head.encode() + sent)
        until = time.monotonic() + 20
        while not app.ended and time.monotonic() < until:
            time.sleep(0.005)
        assert app.ended == 1
        whole = httpx.post(f"http://127.0.0.1:{port}/list", content=b"whole", trust_env=False)
        assert whole.status_code == 200
    assert app.bodies == [b"whole"]


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "9" * 5000, "٣"])
async def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    async with client() as http:
        answer = await http.post("/echo", headers={"Content-Length": length.encode()})  # type: ignore[dict-item]
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/echo", "/fail", "/nothing-here"])
async def test_every_answer_is_protected(path: str) -> None:
    async with client() as http:
        answer = await http.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in answer.headers


async def test_over_tls_browsers_are_told_to_stay_there() -> None:
    async with client(public_url="https://kv.example.com") as http:
        answer = await http.get("/echo", headers={"Host": "kv.example.com"})
    assert answer.headers["strict-transport-security"].startswith("max-age=")


async def test_a_fault_of_our_own_shows_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client() as http:
        answer = await http.get("/fail")
    assert answer.status_code == 500
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    # Who runs it can find out.
    assert SECRET in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize(
    ("given", "kept"),
    [("trace-0123456789", True), ("short", False), ("a" * 65, False), ("x y z x y z", False)],
)
async def test_a_request_id_is_taken_over_where_it_is_harmless(given: str, kept: bool) -> None:
    async with client() as http:
        answer = await http.get("/echo", headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) is kept
    assert answer.json()["id"] == answer.headers["x-request-id"]
