"""A bundle of a running daemon's evidence holds no prompt, no key and nobody's id."""

from __future__ import annotations

import datetime
import json
import zipfile
from pathlib import Path

from test_instance_requests import stored
from typer.testing import CliRunner

from kvrun.audit.cursor import read_records
from kvrun.audit.record import Event
from kvrun.cli.main import app
from support.byhand import HandEngine
from support.daemon import Daemon

TENANT, SESSION = "canary-person-4711", "canary-chat-0815"


def run(*arguments: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(app, [str(item) for item in arguments])
    assert done.exit_code == status, done.output
    return done.stdout


def test_a_bundle_verifies_and_holds_no_secret(
    daemon: Daemon, engine: HandEngine, tmp_path: Path
) -> None:
    plain = stored(daemon, engine, TENANT, count=2, session=SESSION)
    stored(daemon, engine, "somebody", count=1)
    answer = daemon.admin("erase", kind="session", tenant=TENANT, session=SESSION)
    assert isinstance(answer, dict)
    (daemon.socket.parent / "admin.token").write_text(daemon.admin_token)
    run("audit", "collect", "--once", "-c", daemon.config)
    today = datetime.datetime.now(datetime.UTC).date()
    period = ("--from", str(today - datetime.timedelta(days=1)))
    period += ("--to", str(today + datetime.timedelta(days=1)))
    bundle, anchor = tmp_path / "evidence.zip", tmp_path / "anchor.json"
    run("evidence", "export", *period, "--full", "-o", bundle, "-c", daemon.config)
    anchor.write_text(run("evidence", "trust", "-c", daemon.config))
    report = json.loads(run("verify", bundle, "--trust", anchor, "--json"))
    assert {item["verdict"] for item in report["checks"]} == {"pass"}
    assert run("verify", bundle, status=2).endswith("signer: self-asserted\n")

    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
        held = b"".join(archive.read(name) for name in names)
    certificate = Path(str(answer["certificate"])).name
    assert f"deployments/default/certificates/{certificate}" in names
    assert b"log_read" in held, "that evidence was made is on record"
    opening = json.loads(str(answer["opening"]))
    canaries = {
        "tenant": TENANT,
        "session": SESSION,
        "salt of the opening": opening["salt"],
        "engine token": daemon.engine_token,
        "gateway token": daemon.gateway_token,
        "admin token": daemon.admin_token,
    }
    rings = [daemon.data / "signing", daemon.data / "control" / "signing"]
    rings.append(daemon.data / "control-plane" / "control" / "signing")
    for ring in rings:
        for file in ring.glob("*.key.json"):
            canaries[f"private key {file.name}"] = json.loads(file.read_text())["privateKey"]
    assert len(canaries) >= 10
    for what, text in canaries.items():
        assert text.encode() not in held, what
    for block_hash, content in plain:
        for secret in (content, block_hash):
            assert secret not in held
            assert secret.hex().encode() not in held
    for file in (daemon.data / "keys").rglob("*"):
        if file.is_file() and file.stat().st_size >= 32:
            data = file.read_bytes()
            assert data[:64] not in held


def test_why_an_unevaluated_model_is_served_is_in_the_log_first(short_folder: Path) -> None:
    reason = "the lab's own risk"
    settings = f'[deployment]\nunevaluated_reason = "{reason}"\n'
    daemon = Daemon(short_folder, settings=settings)
    daemon.start()
    daemon.stop()
    started = [
        record.reason
        for record in read_records(daemon.data / "audit")
        if record.event is Event.DEPLOYMENT_STARTED
    ]
    assert started[0] == f"a model without a valid evaluation may be served: {reason}"
