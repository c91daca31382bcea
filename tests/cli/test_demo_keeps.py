"""``kvrun demo --keep`` leaves everything running and prints where it is, and a line to paste."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kvrun.cli import demo
from kvrun.cli.main import app

KEY = "kvk_" + "x" * 43
Asked = list[tuple[str, dict[str, str], dict[str, Any]]]


@pytest.fixture
def gateway() -> Iterator[tuple[str, Asked]]:
    """Something that answers where the gateway would, and what it was asked."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, dict(self.headers), body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.parametrize("keep", [True, False])
def test_the_printed_line_asks_what_is_left_running(
    gateway: tuple[str, Asked], monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    url, asked = gateway
    course: list[str] = []

    class Stack:
        """Starts nothing, and says in which order it was asked to."""

        def __init__(self, *_: object) -> None:
            self.url, self.api_key = url, KEY
            self.config = SimpleNamespace(instance=SimpleNamespace(data_dir="/the/data"))
            self.supervisor = SimpleNamespace(watch=lambda: course.append("kept"))

        def start(self, *_: str) -> None:
            course.append("started")

        def stop(self, *_: str) -> None:
            course.append("stopped")

    monkeypatch.setattr(demo, "Stack", Stack)
    monkeypatch.setattr(demo, "Story", lambda *_: SimpleNamespace(steps=list))
    monkeypatch.setattr(demo, "_stop_on_signals", lambda _stack: None)
    monkeypatch.setattr(demo, "usual_engine", lambda *_: "vllm")
    shown = CliRunner().invoke(app, ["demo", *(["--keep"] if keep else [])])
    assert shown.exit_code == 0, shown.output
    assert course == (["started", "kept", "stopped"] if keep else ["started", "stopped"])
    line = re.search(r"curl http.*?\}'", shown.output, re.DOTALL)
    assert (line is not None) == keep
    if line is None:
        return
    assert f"{url}/v1" in shown.output
    assert "/the/data" in shown.output
    subprocess.run(["sh", "-c", line[0].replace("curl ", "curl -sS ", 1)], check=True, timeout=30)
    ((path, headers, body),) = asked
    assert path == "/v1/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["X-KV-Tenant"] == "alice"
    assert (body["model"], body["max_tokens"]) == ("demo", 16)
