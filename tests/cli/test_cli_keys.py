"""`kvrun keys` shows every key and replaces each while a daemon runs."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvrun.cli.main import app
from kvrun.erasure.document import parse_certificate
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys
from support.client import grant
from support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder, settings='[gateway]\napi_keys_file = "api_keys.json"\n')
    running.start()
    (running.data / "run" / "admin.token").write_text(running.admin_token)
    record = ApiKeyRecord(id="app", sha256=hash_api_key(make_api_key(b"k" * 32)), tenant="alice")
    save_api_keys(folder / "api_keys.json", [record])
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def kvrun(daemon: Daemon, *arguments: str, status: int = 0) -> Any:
    done = CliRunner().invoke(app, ["keys", *arguments, "-c", str(daemon.config), "--json"])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout) if status == 0 else done.output


def run(daemon: Daemon, *command: str) -> Result:
    done = CliRunner().invoke(app, [*command, "-c", str(daemon.config)])
    assert done.exit_code == 0, done.output
    return done


def by_kind(daemon: Daemon, kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = kvrun(daemon, "list")
    return [entry for entry in entries if entry["kind"] == kind]


@pytest.mark.parametrize("kind", ["checkpoint", "certificate", "instance", "evidence"])
def test_a_signing_key_is_replaced_and_the_earlier_one_verifies(daemon: Daemon, kind: str) -> None:
    before = by_kind(daemon, kind)
    made = kvrun(daemon, "rotate", kind, "--overlap", "100")
    after = by_kind(daemon, kind)
    assert [entry["id"] for entry in after] == [*(entry["id"] for entry in before), made["id"]]
    assert after[-1]["state"] == "in use"
    for entry in after[:-1]:
        assert entry["state"] == "verifies"
        assert entry["valid_until"] is not None
    revoked = kvrun(daemon, "revoke", made["id"])
    assert revoked["state"] == "revoked"
    assert revoked["revoked_at"] is not None


def test_the_daemon_signs_with_the_new_checkpoint_key_and_the_earlier_one_beside_it(
    daemon: Daemon,
) -> None:
    kvrun(daemon, "rotate", "checkpoint")
    daemon.admin("rotate_epoch")  # one more record
    daemon.admin("flush")
    daemon.stop()
    note = (daemon.data / "audit" / "checkpoint").read_text()
    daemon.start()
    (daemon.data / "run" / "admin.token").write_text(daemon.admin_token)
    valid = [e for e in by_kind(daemon, "checkpoint") if e["state"] in ("in use", "verifies")]
    assert note.count("— ") == len(valid) >= 2


def test_certificates_are_signed_all_the_while_their_key_is_replaced(
    daemon: Daemon, tmp_path: Path
) -> None:
    stop, problems = threading.Event(), []
    made: list[Path] = []

    def erase() -> None:
        try:
            while not stop.is_set():
                tenant = f"user-{len(made)}"
                grant(daemon, tenant)
                done: Any = daemon.admin(
                    "erase", kind="session", tenant=tenant, session="default", requester="tests"
                )
                made.append(Path(done["certificate"]))
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=erase)
    thread.start()
    for _ in range(3):
        kvrun(daemon, "rotate", "certificate")
        seen = len(made)
        while not problems and len(made) < seen + 2:  # the second began after the rotation
            stop.wait(0.01)
    stop.set()
    thread.join()
    assert problems == []
    signers = {parse_certificate(path.read_bytes()).public_key for path in made}
    assert len(signers) >= 3
    anchor = tmp_path / "anchor.json"
    anchor.write_text(run(daemon, "trust", "export").stdout)
    for path in made:
        checked = CliRunner().invoke(app, ["verify", str(path), "--trust", str(anchor)])
        assert checked.exit_code == 0, checked.output


def test_epoch_and_root_are_replaced_by_the_running_daemon(daemon: Daemon) -> None:
    (epoch,) = by_kind(daemon, "epoch")
    (root,) = by_kind(daemon, "root")
    root_file = daemon.root / "root.slots"
    before = root_file.read_bytes()
    made = kvrun(daemon, "rotate", "epoch")
    assert int(made["id"]) == int(epoch["id"]) + 1
    assert kvrun(daemon, "rotate", "root")["id"] == root["id"]
    assert root_file.read_bytes() != before
    events = [record for record in daemon.events() if record["event"] == "key_rotated"]
    assert [record["reason"] for record in events][-2:] == ["epoch", "root"]


def test_an_api_key_is_replaced_and_ended(daemon: Daemon) -> None:
    made = kvrun(daemon, "rotate", "api", "app", "--overlap", "50")
    assert made["id"] == "app-2"
    assert made["secret"].startswith("kvk_")
    old, new = by_kind(daemon, "api")
    assert (old["id"], new["id"]) == ("app", "app-2")
    assert old["valid_until"] is not None
    assert new["note"] == "inference; tenant alice"
    assert kvrun(daemon, "revoke", "app-2")["state"] == "ended"
    assert made["secret"] not in json.dumps(kvrun(daemon, "list"))


def test_what_cannot_be_rotated_here_says_how_it_is(daemon: Daemon) -> None:
    assert "no gateway is connected" in kvrun(daemon, "rotate", "claim", status=1)
    assert "name the API key" in " ".join(kvrun(daemon, "rotate", "api", status=2).split())
    assert "no key 'web'" in kvrun(daemon, "rotate", "api", "web", status=2)
    assert "no key '0000'" in kvrun(daemon, "revoke", "0000", status=2)


def test_without_a_daemon_the_list_says_what_it_cannot_know(tmp_path: Path) -> None:
    config = tmp_path / "kvrun.toml"
    config.write_text(f'[instance]\ndata_dir = "{tmp_path}/d"\n')
    done = CliRunner().invoke(app, ["keys", "list", "-c", str(config), "--json"])
    assert done.exit_code == 0
    assert {e["kind"]: e["state"] for e in json.loads(done.stdout)} == {
        "epoch": "unknown",
        "root": "unknown",
    }
    assert not (tmp_path / "d").exists()
    table = CliRunner().invoke(app, ["keys", "list", "-c", str(config)])
    assert "no daemon runs" in " ".join(table.stdout.split())
    refused = CliRunner().invoke(app, ["keys", "rotate", "epoch", "-c", str(config)])
    assert refused.exit_code == 3
