"""The collector as a process: what it offers to operators, and whom it tells of alerts."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from typer.testing import CliRunner

from kvrun.cli.main import app
from kvrun.config.layout import DataLayout
from kvrun.control.alerts import Alert, AlertBook, AlertKind
from support.client import eventually
from support.unix_http import get


def test_it_tells_the_webhook_and_has_metrics_and_json_lines(short_folder: Path) -> None:
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
    address = f"http://127.0.0.1:{server.server_address[1]}/S3CRET"
    (short_folder / "kvrun.toml").write_text(
        f'[instance]\ndata_dir = "d"\n[log]\nformat = "json"\n[alerts]\nwebhook_url = "{address}"\n'
        '[audit]\ncollector_metrics_socket = "d/run/collector.sock"\n'
    )
    book = AlertBook(DataLayout(short_folder / "d").control / "alerts")
    alert_id = book.prepare("default/default/h", AlertKind.FORKED, 1_700_000_000)
    alert = Alert(
        id=alert_id,
        kind=AlertKind.FORKED,
        log="default/default/h",
        source="h",
        seq=7,
        detail="two histories",
        raised_at=1_700_000_000,
    )
    book.save(alert)
    log, config = short_folder / "collector.log", str(short_folder / "kvrun.toml")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvrun", "audit", "collect", "--config", config],
            stdout=out,
            stderr=out,
            env={name: value for name, value in os.environ.items() if "KVRUN" not in name},
        )
    try:
        endpoint = short_folder / "d/run/collector.sock"
        eventually(lambda: got != [], "the webhook heard of the alert")
        assert get(endpoint, "/healthz")[0] == 200
        # Nothing runs in this folder, so there is no log to read.
        assert get(endpoint, "/readyz") == (
            503,
            '{"status":"not ready","collection":"unavailable"}',
        )

        def told() -> bool:
            metrics = get(endpoint, "/metrics")[1]
            return 'kvrun_webhook_messages_total{deployment="default",outcome="delivered"' in (
                metrics
            ) and (
                'kvrun_alerts_waiting{deployment="default",kind="forked",workspace="default"} 1.0'
                in metrics
            )

        eventually(told, "the metrics show the alert")
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
    tried = CliRunner().invoke(app, ["audit", "try-webhook", "--config", config])
    assert tried.exit_code == 0, tried.output
    assert "took the test message" in tried.output
    assert [item["event"] for item in got] == ["raised", "test"]
    server.shutdown()
    server.server_close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"collector"}
    assert any("unavailable" in line["message"] for line in lines)
    assert "S3CRET" not in log.read_text()
    assert not endpoint.exists()
