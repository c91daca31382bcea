"""A real S3 server in a process of its own (moto), for as long as a test needs it."""

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

OPTIONS = {
    "region": "us-east-1",
    "access_key_id": "test",
    "secret_access_key": "test-secret",
    "virtual_hosted_style_request": "false",
}


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, str]]]:
    """The server's ``host:port`` and the options that reach it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from moto.server import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                request(f"127.0.0.1:{port}", "GET", "/moto-api/data.json")
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.05)
        yield f"127.0.0.1:{port}", {**OPTIONS, "endpoint": f"http://127.0.0.1:{port}"}
    finally:
        process.kill()
        process.wait()


def request(
    address: str, method: str, path: str, body: str = "", **headers: str
) -> tuple[int, bytes]:
    """One plain request: the server asks for no signature."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
