"""No log, metric or trace holds a prompt, an answer, a tenant, a session or a key.

The daemon and the gateway run as processes, as verbose as they can be, before an engine that
misbehaves. Everything that passes through them is marked, and looked for in all that they wrote.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kvrun.gateway.apikeys import hash_api_key, make_api_key
from kvrun.instance.connection import Connection, InstanceUnavailableError
from kvrun.instance.protocol import Role, Verdict
from kvrun.launch.readiness import free_port, http_answers
from support.byhand import BLOCK_BYTES, HandEngine, hello
from support.client import eventually
from support.otlp import OtlpCollector, otlp_collector
from support.unix_http import get

MARK = "marker" + secrets.token_hex(8)
TENANT, SESSION, PROMPT, ANSWER = (f"{MARK}-{name}" for name in ("ten", "ses", "prompt", "answer"))
KEY = make_api_key(secrets.token_bytes(32))
WRONG_KEY = make_api_key(secrets.token_bytes(32))
CONFIG = """
[log]
format = "json"
[instance]
data_dir = "d"
memory_bytes = "64MiB"
log_level = "debug"
metrics_socket = "d/run/metrics.sock"
metrics_tenants = 5
[erasure]
engine_deadline_s = 1
[gateway]
port = {port}
engine_url = "unix:{engine}"
api_keys_file = "keys.json"
"""


class _Engine(BaseHTTPRequestHandler):
    """Answers as the prompt asks it to, and quotes all that it got where it can."""

    protocol_version = "HTTP/1.1"
    got: list[dict[str, Any]] = []  # noqa: RUF012  the test's own, one engine a module

    def do_GET(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        self.got.append(request)
        prompt = request["prompt"]
        if "refuse" in prompt:
            error = {"error": {"message": f"bad request: {body.decode()}", "code": 400}}
            self._answer(400, json.dumps(error).encode())
        elif "break" in prompt:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            event = f'data: {{"text": "{ANSWER}"}}\n\n'.encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.close_connection = True
        elif "garbage" in prompt:
            self.wfile.write(f"{ANSWER} is no HTTP\r\n\r\n".encode())
            self.close_connection = True
        else:
            self._answer(200, json.dumps({"choices": [{"text": ANSWER}]}).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _EngineServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("engine", 0)


@dataclass
class Running:
    folder: Path
    port: int
    collector: OtlpCollector
    logs: dict[str, Path] = field(default_factory=dict)

    def post(self, prompt: str, key: str = KEY, **headers: str) -> tuple[int, bytes]:
        body = json.dumps({"model": "m", "prompt": prompt, "stream": "break" in prompt})
        return self.send("POST", "/v1/completions", body.encode(), key, **headers)

    def send(
        self, method: str, path: str, body: bytes, key: str = KEY, **headers: str
    ) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        everywhere = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "X-KV-Tenant": TENANT,
            "X-KV-Session": SESSION,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {**everywhere, **named})
            answer = connection.getresponse()
            with contextlib.suppress(http.client.IncompleteRead):
                return answer.status, answer.read()
            return answer.status, b""
        finally:
            connection.close()

    def written(self) -> str:
        return "".join(path.read_text() for path in self.logs.values())


@contextlib.contextmanager
def process(running: Running, name: str) -> Iterator[None]:
    running.logs[name] = running.folder / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if "KVRUN" not in key}
    with running.logs[name].open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "kvrun", name, "--config", str(running.folder / "kvrun.toml")],
            stdout=log,
            stderr=log,
            env={**environment, **running.collector.environment()},
        )
    try:
        yield
    finally:
        started.terminate()
        started.wait(timeout=30)


def _accepts(folder: Path) -> bool:
    token = folder / "d/run/engine.token"
    if not token.exists():
        return False
    try:
        asked = hello(Role.SCHEDULER, token.read_text().strip())
        Connection.connect(folder / "d/run/instance.sock", asked, timeout_s=5).close()
    except InstanceUnavailableError:
        return False
    return True


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with (
        tempfile.TemporaryDirectory(prefix="kvr-", dir="/tmp") as name,
        otlp_collector() as collector,
        contextlib.ExitStack() as stack,
    ):
        folder, port = Path(name), free_port()
        server = _EngineServer(str(folder / "engine.sock"), _Engine)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (folder / "kvrun.toml").write_text(CONFIG.format(port=port, engine=folder / "engine.sock"))
        keys = [{"id": "app", "sha256": hash_api_key(KEY), "scopes": ["inference", "erase"]}]
        (folder / "keys.json").write_text(json.dumps({"keys": keys}))
        (folder / "keys.json").chmod(0o600)
        made = Running(folder, port, collector)
        stack.enter_context(process(made, "instance"))
        eventually(lambda: _accepts(folder), "the daemon listens")
        stack.enter_context(process(made, "gateway"))
        eventually(
            lambda: http_answers(f"http://127.0.0.1:{port}", "/healthz"), "the gateway answers"
        )
        yield made


@pytest.fixture(scope="module")
def driven(running: Running) -> Running:
    """After everything that can go well or wrong went well or wrong once."""
    assert running.post(PROMPT)[0] == 200
    assert ANSWER.encode() in running.post(PROMPT)[1]
    assert running.post(PROMPT, WRONG_KEY)[0] == 401
    assert running.post(f"{PROMPT} refuse")[0] == 400
    assert running.post(f"{PROMPT} break")[0] == 200
    assert running.post(f"{PROMPT} garbage")[0] == 503
    assert running.post(PROMPT, X_KV_Oops=TENANT)[0] == 400
    assert running.post(PROMPT, X_KV_Tenant=f"{TENANT} \x07")[0] == 400
    assert running.send("POST", "/v1/completions", f'{{"prompt": "{PROMPT}'.encode())[0] == 400
    unknown = json.dumps({"model": "m", "prompt": PROMPT, PROMPT: PROMPT}).encode()
    assert running.send("POST", "/v1/completions", unknown)[0] == 400
    assert running.send("POST", f"/v1/{PROMPT}", b"{}")[0] == 404
    stamped = _Engine.got[0]
    claim, salt = stamped["kv_transfer_params"]["kvrun_claim"], stamped["cache_salt"]
    token = (running.folder / "d/run/engine.token").read_text().strip()
    made = [(secrets.token_bytes(32), PROMPT.encode().ljust(BLOCK_BYTES, b"\0"))]
    with HandEngine(running.folder / "d/run/instance.sock", token) as engine:
        answer = engine.match(claim, salt, [made[0][0]])
        assert answer.verdict is Verdict.ADMITTED
        engine.store(answer.handle, made)
        engine.load(answer.handle, [made[0][0], secrets.token_bytes(32)])
        assert engine.match(claim, salt, []).verdict is Verdict.DENIED
        assert engine.match(f"kvc1.{MARK}.{MARK}.{MARK}", salt, []).verdict is Verdict.DENIED
        assert engine.match(claim, MARK, [b"x"]).verdict is Verdict.DENIED
    with pytest.raises(InstanceUnavailableError):
        Connection.connect(
            running.folder / "d/run/instance.sock", hello(Role.WORKER, MARK), timeout_s=5
        )
    assert running.send("DELETE", f"/kv/v1/users/{TENANT}?reference={MARK}", b"")[0] == 200
    assert running.send("DELETE", f"/kv/v1/users/{TENANT}?{MARK}=1", b"")[0] == 400
    running.collector.wait_for("kvrun.request", "kvrun.match", "kvrun.seal", "kvrun.load")
    return running


def secret_texts() -> list[str]:
    stamped = _Engine.got[0]
    salt, claim = stamped["cache_salt"], stamped["kv_transfer_params"]["kvrun_claim"]
    return [MARK, KEY, KEY[4:], WRONG_KEY[4:], salt, claim, claim.split(".")[2]]


def test_the_logs_say_what_went_wrong_and_about_whom_nothing(driven: Running) -> None:
    written = driven.written()
    assert "broke off" in written
    assert "denied the cache" in written
    assert "is not allowed to connect as worker" in written
    assert [text for text in secret_texts() if text in written] == []


def test_each_line_of_each_log_is_an_object_of_its_process(driven: Running) -> None:
    for name, path in driven.logs.items():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines
        assert {line["process"] for line in lines} == {name}


def test_metrics_name_nobody(driven: Running) -> None:
    status, text = get(driven.folder / "d/run/metrics.sock", "/metrics")
    assert status == 200
    assert "kvrun_requests_denied_total" in text
    assert [secret for secret in secret_texts() if secret in text] == []


def test_traces_name_nobody(driven: Running) -> None:
    assert {span.service for span in driven.collector.spans()} == {
        "kvrun-gateway",
        "kvrun-instance",
    }
    bodies = b"".join(driven.collector.raw)
    assert [secret for secret in secret_texts() if secret.encode() in bodies] == []
