"""Base64 and HTTP of their own, for keys: they say what the usual libraries say."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.keys.quiet_base64 import decode_into, encode
from kvrun.keys.quiet_http import QuietHttp


@given(st.binary(max_size=70))
def test_base64_is_the_usual_one(data: bytes) -> None:
    text = encode(memoryview(data))
    assert text == base64.b64encode(data)
    out = bytearray(len(data))
    decode_into(memoryview(text), memoryview(out))
    assert out == data


@given(st.binary(max_size=48), st.integers(0, 33))
def test_what_is_not_base64_of_that_length_is_refused(text: bytes, size: int) -> None:
    out = bytearray(size)
    try:
        decode_into(memoryview(text), memoryview(out))
    except ValueError:
        return
    assert base64.b64encode(out) == text


class Handler(BaseHTTPRequestHandler):
    """Answers with as many bytes as the path says, in chunks, at once, or until it closes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        received = self.rfile.read(int(self.headers["Content-Length"]))
        _, how, size = self.path.split("/")
        body = (received * (int(size) // max(1, len(received)) + 1))[: int(size)]
        self.send_response(200)
        if how == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(body), 1000):
                part = body[start : start + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        elif how == "close":
            self.close_connection = True
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            # A server that closes a kept connection without saying so.
            self.close_connection = how == "drops"

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def connection() -> Iterator[QuietHttp]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made = QuietHttp(
            f"http://127.0.0.1:{server.server_port}",
            trust=ssl.create_default_context(),
            timeout_s=10,
            max_answer_bytes=200_000,
        )
        yield made
        made.close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("how", ["sized", "chunked", "close", "drops"])
def test_answers_arrive_whole_one_after_the_other_and_are_zeroed(
    connection: QuietHttp, how: str
) -> None:
    for size in (0, 1, 999, 1000, 65_535, 65_537, 150_000, 7):
        body = bytearray(b"0123456789")
        status, answer = connection.request("POST", f"/{how}/{size}", {}, body)
        assert status == 200
        assert bytes(answer) == (b"0123456789" * 15_000)[:size]
        connection.wipe()
        assert bytes(answer) == bytes(size)
        assert not any(connection._reader._buffer)


def test_an_answer_that_is_too_long_is_cut_one_byte_later(connection: QuietHttp) -> None:
    for how in ("sized", "chunked", "close"):
        _, answer = connection.request("POST", f"/{how}/500000", {}, bytearray(b"x"))
        assert len(answer) == 200_001
    _, answer = connection.request("POST", "/sized/3", {}, bytearray(b"x"))
    assert bytes(answer) == b"xxx"
