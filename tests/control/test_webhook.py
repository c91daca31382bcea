"""A webhook hears of every alert, also after outages and restarts, and nobody else does."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from collect_rig import Rig
from pydantic import ValidationError
from simulator import World, honest

from kvrun.audit.record import format_time
from kvrun.config.alerts import AlertsSection
from kvrun.config.secret_file import SecretFileError
from kvrun.control.alerts import AlertKind
from kvrun.control.remembered import RememberedLog
from kvrun.control.webhook import NoWebhookError, Webhook, WebhookError

SECRET = b"a-secret-of-the-webhook"


@dataclass
class Receiver:
    """A real HTTP server that answers what ``answers`` says (status, headers), else 200."""

    port: int = 0
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[bytes], tuple[int, dict[str, str]]] = lambda body: (200, {})

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.got]

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(body["event"], body["alert"]["kind"]) for body in self.bodies]

    def start(self) -> ThreadingHTTPServer:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((self.path, headers, body))
                status, more = receiver.answer(body)
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    server = running.start()
    yield running
    server.shutdown()
    server.server_close()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "control-plane")


@pytest.fixture
def log(tmp_path: Path, rig: Rig) -> RememberedLog:
    world: World = honest(tmp_path / "instance")
    rig.collect(world.folder)
    (found,) = rig.memory.all()
    return found


def webhook(rig: Rig, port: int, **settings: Any) -> Webhook:
    """As a process that has just started has it."""
    url = settings.pop("url", f"http://127.0.0.1:{port}/hook/S3CRET-PATH?x=1")
    chosen = AlertsSection(webhook_url=url, **settings)
    return Webhook(chosen, rig.alerts, rig.layout.control, rig.clock, chance=lambda: 0.5)


def warn(rig: Rig, log: RememberedLog, about: str = "engine", count: int = 1) -> None:
    detail = f"{count} requests of <!channel> & {about}"
    rig.alarm.warn(AlertKind.OMISSION, log, detail, {"c": b"1"}, about=about, count=count)


def test_an_alert_is_told_once_with_what_was_found(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    hook = webhook(rig, receiver.port)
    assert hook.deliver().delivered == 0
    warn(rig, log)
    assert hook.deliver().delivered == 1
    assert hook.deliver().delivered == 0
    ((path, headers, _),) = receiver.got
    (body,) = receiver.bodies
    assert path == "/hook/S3CRET-PATH?x=1"
    assert headers["content-type"] == "application/json"
    assert headers["x-kvrun-delivery"] == body["id"]
    assert "x-kvrun-signature" not in headers
    assert body["version"] == 1
    assert body["event"] == "raised"
    assert body["alert"]["log"] == log.log
    assert body["alert"]["missing_requests"] == 1
    assert body["alert"]["collection_stopped"] is False
    assert "omission" in body["text"]


def test_a_growing_count_and_an_acknowledgement_are_told_in_their_order(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    hook = webhook(rig, receiver.port)
    hook.deliver()
    warn(rig, log, count=1)
    hook.deliver()
    warn(rig, log, count=7)
    hook.deliver()
    rig.alarm.acknowledge(log.log, "looked into", start_over=False)
    hook.deliver()
    assert [event for event, _ in receiver.events] == ["raised", "updated", "acknowledged"]
    assert receiver.bodies[1]["alert"]["missing_requests"] == 7
    assert receiver.bodies[2]["alert"]["acknowledged_because"] == "looked into"
    assert len({body["id"] for body in receiver.bodies}) == 3


def test_alerts_of_an_outage_are_told_after_it_also_over_a_restart(
    rig: Rig, log: RememberedLog
) -> None:
    receiver = Receiver()
    server = receiver.start()
    webhook(rig, receiver.port).deliver()
    server.shutdown()
    server.server_close()
    warn(rig, log, "engine")
    warn(rig, log, "gateway")
    away = webhook(rig, receiver.port)
    waits = []
    for _ in range(6):
        done = away.deliver()
        # One look is enough to know that nobody is there.
        assert (done.delivered, done.failed, done.waiting) == (0, 1, 2)
        assert done.next_at is not None
        waits.append(done.next_at - rig.clock())
        rig.clock.time = done.next_at
        if len(waits) == 3:
            away = webhook(rig, receiver.port)
    assert max(waits) > min(waits)
    assert max(waits) <= 900 * 1.2
    server = receiver.start()
    rig.clock.time += 2000
    try:
        assert webhook(rig, receiver.port).deliver().delivered == 2
        assert receiver.events == [("raised", "omission")] * 2
        assert webhook(rig, receiver.port).deliver().delivered == 0
    finally:
        server.shutdown()
        server.server_close()


def test_before_its_time_a_failed_message_is_not_sent_again(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    hook = webhook(rig, receiver.port)
    hook.deliver()
    warn(rig, log)
    receiver.answer = lambda body: (500, {})
    first = hook.deliver()
    assert (first.failed, len(receiver.got)) == (1, 1)
    assert webhook(rig, receiver.port).deliver().failed == 0
    assert len(receiver.got) == 1
    receiver.answer = lambda body: (204, {})
    assert first.next_at is not None
    rig.clock.time = first.next_at
    assert webhook(rig, receiver.port).deliver().delivered == 1
    # The same message under the same id, so that a receiver can tell.
    assert receiver.bodies[0]["id"] == receiver.bodies[1]["id"]


def test_a_message_that_the_receiver_refuses_holds_no_other_back(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    hook = webhook(rig, receiver.port)
    hook.deliver()
    warn(rig, log, "poison")
    warn(rig, log, "engine")
    receiver.answer = lambda body: (400 if b"poison" in body else 200, {})
    done = hook.deliver()
    assert (done.delivered, done.failed, done.waiting) == (1, 1, 1)


def test_a_redirect_is_not_followed(rig: Rig, log: RememberedLog, receiver: Receiver) -> None:
    elsewhere = Receiver()
    server = elsewhere.start()
    try:
        hook = webhook(rig, receiver.port)
        hook.deliver()
        warn(rig, log)
        location = f"http://127.0.0.1:{elsewhere.port}/metadata"
        for status in (301, 302, 303, 307, 308):
            receiver.answer = lambda body, status=status: (status, {"Location": location})
            done = hook.deliver()
            assert (done.delivered, done.failed) == (0, 1)
            assert done.next_at is not None
            rig.clock.time = done.next_at
        assert len(receiver.got) == 5
        assert elsewhere.got == []
    finally:
        server.shutdown()
        server.server_close()


def test_no_message_about_a_failure_holds_the_address(
    rig: Rig, log: RememberedLog, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    webhook(rig, receiver.port).deliver()
    warn(rig, log)
    receiver.answer = lambda body: (403, {})
    refused = webhook(rig, receiver.port).deliver()
    assert refused.next_at is not None
    rig.clock.time = refused.next_at
    away = webhook(rig, 1).deliver()
    for said in (refused.message, away.message, caplog.text):
        assert "S3CRET" not in said
    assert refused.message == f"127.0.0.1:{receiver.port} answered with status 403"
    assert "127.0.0.1:1" in away.message


def test_a_message_is_signed_with_its_time(
    rig: Rig, log: RememberedLog, receiver: Receiver, tmp_path: Path
) -> None:
    secret = tmp_path / "webhook.key"
    secret.write_bytes(SECRET + b"\n")
    secret.chmod(0o600)
    hook = webhook(rig, receiver.port, webhook_secret_file=secret)
    hook.deliver()
    warn(rig, log)
    hook.deliver()
    ((_, headers, body),) = receiver.got
    parts = dict(part.split("=") for part in headers["x-kvrun-signature"].split(","))
    assert format_time(int(parts["t"]))[:19] == json.loads(body)["sent_at"][:19]
    expected = hmac.new(SECRET, f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    assert parts["v1"] == expected


@pytest.mark.parametrize(("content", "mode"), [(SECRET, 0o644), (b"short", 0o600), (None, 0)])
def test_a_secret_that_cannot_be_relied_on_is_refused(
    rig: Rig,
    log: RememberedLog,
    receiver: Receiver,
    tmp_path: Path,
    content: bytes | None,
    mode: int,
) -> None:
    secret = tmp_path / "webhook.key"
    if content is not None:
        secret.write_bytes(content)
        secret.chmod(mode)
    webhook(rig, receiver.port).deliver()
    warn(rig, log)
    with pytest.raises(SecretFileError, match=r"webhook\.key"):
        webhook(rig, receiver.port, webhook_secret_file=secret).deliver()
    assert receiver.got == []


def test_slack_gets_a_text_that_can_call_nobody(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    hook = webhook(rig, receiver.port, webhook_format="slack")
    hook.deliver()
    warn(rig, log)
    hook.deliver()
    (body,) = receiver.bodies
    assert set(body) == {"text"}
    assert "&lt;!channel&gt; &amp;" in body["text"]
    assert "<" not in body["text"]


def test_a_test_message_says_that_it_is_one(rig: Rig, receiver: Receiver) -> None:
    for webhook_format in ("json", "slack"):
        tried = webhook(rig, receiver.port, webhook_format=webhook_format)
        assert tried.try_out() == f"127.0.0.1:{receiver.port}"
    first, second = receiver.bodies
    assert first["event"] == "test"
    assert "alert" not in first
    assert set(second) == {"text"}
    receiver.answer = lambda body: (404, {})
    with pytest.raises(WebhookError, match="status 404"):
        webhook(rig, receiver.port).try_out()
    with pytest.raises(NoWebhookError):
        webhook(rig, receiver.port, url=None).try_out()


def test_where_a_webhook_is_new_old_acknowledged_alerts_are_no_news(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    warn(rig, log, "old")
    rig.alarm.acknowledge(log.log, "looked into", start_over=False)
    warn(rig, log, "new")
    assert webhook(rig, receiver.port).deliver().delivered == 1
    assert receiver.bodies[0]["alert"]["detail"].endswith("new")


def test_a_damaged_memory_tells_again_rather_than_not(
    rig: Rig, log: RememberedLog, receiver: Receiver
) -> None:
    webhook(rig, receiver.port).deliver()
    warn(rig, log)
    webhook(rig, receiver.port).deliver()
    memory = rig.layout.control / "webhook.json"
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600
    memory.write_bytes(memory.read_bytes()[:-20])
    assert webhook(rig, receiver.port).deliver().delivered == 1
    assert receiver.bodies[0]["id"] == receiver.bodies[1]["id"]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "file:///etc/passwd",
        "https://",
        "https://user:pw@hooks.example.com/x",
        "https://hooks.example.com/x#y",
        "https://hooks.example.com:99999/x",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nX: y",
        "https://hooks.example.com/" + "a" * 2000,
    ],
)
def test_an_address_that_is_not_safe_is_refused_when_it_is_configured(url: str) -> None:
    with pytest.raises(ValidationError, match="webhook_url"):
        AlertsSection(webhook_url=url)
