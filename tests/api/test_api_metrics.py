"""The control plane's metrics, and the webhook that hears of its own alerts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from api_rig import URL, Caller, World, open_world
from prometheus_client.parser import text_string_to_metric_families

from kvrun.accounts import Role
from kvrun.api.defaults import deployment_defaults
from kvrun.config import parse_config


async def metrics(caller: Caller) -> httpx.Response:
    transport = httpx.ASGITransport(caller.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        return await http.get("/metrics", headers=caller.headers)


def shown(answer: httpx.Response) -> set[tuple[str, str]]:
    assert answer.status_code == 200
    return {
        (sample.labels["deployment"], sample.labels["state"])
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "kvrun_deployment_state"
    }


async def test_each_sees_the_deployments_of_their_own_workspace(world: World) -> None:
    chat, search = world.deployment("chat"), world.deployment("search", "umbrella")
    assert shown(await metrics(world.person("a@acme.example", Role.AUDITOR))) == {
        (chat.id, "running")
    }
    stranger = world.person("u@umbrella.example", Role.AUDITOR, "umbrella")
    assert shown(await metrics(stranger)) == {(search.id, "running")}
    assert chat.id not in (await metrics(stranger)).text
    assert (await metrics(world.nobody)).status_code == 401


async def test_what_is_known_of_logs_and_alerts_is_beside_it(world: World) -> None:
    world.deployment()
    text = (await metrics(world.owner)).text
    assert 'kvrun_alerts_waiting{deployment="' in text
    assert "kvrun_control_readable" in text


def test_a_use_of_the_owner_link_is_told_to_the_webhook(short_folder: Path) -> None:
    got: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = f'[alerts]\nwebhook_url = "http://127.0.0.1:{server.server_address[1]}/"\n'
    try:
        with open_world(short_folder, text) as world:
            world.services.tell_webhook()
            world.services.tell_webhook()
    finally:
        server.shutdown()
        server.server_close()
    (told,) = got
    assert told["event"] == "raised"
    assert told["alert"]["kind"] == "owner_link_used"  # type: ignore[index]


def test_deployments_take_over_alerts_and_log_format_but_no_port() -> None:
    config = parse_config(
        '[alerts]\nwebhook_url = "https://hooks.example.com/x"\n[log]\nformat = "json"\n'
        '[audit]\ncollector_metrics_port = 9102\ncollector_metrics_socket = "c.sock"\n'
        "heartbeat_s = 30\n",
        {},
        source=Path("/srv/kvrun.toml"),
    )
    assert deployment_defaults(config) == {
        "alerts.webhook_url": "https://hooks.example.com/x",
        "log.format": "json",
        "audit.heartbeat_s": 30,
    }
