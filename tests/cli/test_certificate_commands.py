"""``kvrun verify``, ``kvrun certificate`` and ``kvrun trust`` as an auditor meets them."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from erasure.certificate_world import Issued, Operator
from kvrun.audit.checkpoint import Ed25519Signer
from kvrun.audit.segment import SIGNER_NAME
from kvrun.cli.main import app
from kvrun.erasure.trust import parse_anchor, raw_key
from kvrun.keys.signing import KeyPurpose, SigningRing

NAMES = ("document", "signature", "statement", "signer", "time", "log", "witness")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(item) for item in arguments], env={"COLUMNS": "100"})


@pytest.fixture
def issued() -> Issued:
    return Operator().issue()


@pytest.fixture
def files(tmp_path: Path, issued: Issued) -> Path:
    (tmp_path / "certificate.json").write_bytes(issued.data)
    (tmp_path / "anchor.json").write_bytes(msgspec.json.encode(issued.anchor))
    (tmp_path / "opening.json").write_bytes(issued.opening)
    return tmp_path


def test_verify_prints_one_line_a_check_and_ends_with_0(files: Path) -> None:
    done = run("verify", files / "certificate.json", "--trust", files / "anchor.json")
    assert done.exit_code == 0
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert lines[:7] == [[name, "pass"] for name in NAMES]
    assert lines[7:] == [["erasure", "pass"], ["subject", "unknown"]]


def test_verify_without_an_anchor_says_self_asserted_and_ends_with_2(files: Path) -> None:
    done = run("verify", files / "certificate.json")
    assert done.exit_code == 2
    assert done.stdout.splitlines()[-1] == "signer: self-asserted"


def test_verify_opens_the_subject(files: Path) -> None:
    opened = ("--trust", files / "anchor.json", "--opening", files / "opening.json", "--subject")
    assert run("verify", files / "certificate.json", *opened, "chat-7").exit_code == 0
    done = run("verify", files / "certificate.json", *opened, "chat-8")
    assert done.exit_code == 1
    assert "other_subject" in done.stdout


def test_verify_of_a_changed_certificate_ends_with_1(files: Path, issued: Issued) -> None:
    changed = files / "changed.json"
    for old, new, name in (
        (b'"sig":"', b'"sig":"A', "malformed"),
        (b"eyJ", b"eyK", "changed"),
        (b"certificate/v1", b"certificate/v9", "unknown_version"),
    ):
        changed.write_bytes(issued.data.replace(old, new, 1))
        done = run("verify", changed, "--trust", files / "anchor.json")
        assert done.exit_code == 1
        assert name in done.stdout


def test_verify_prints_json_for_scripts(files: Path) -> None:
    done = run("verify", files / "certificate.json", "--json")
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.exit_code == 2
    assert {item["check"] for item in report["checks"]} >= set(NAMES)
    assert report["statement"]["request"]["reference"] == "DSAR-123"


def test_a_file_that_is_no_anchor_is_named(files: Path) -> None:
    done = run("verify", files / "certificate.json", "--trust", files / "certificate.json")
    assert done.exit_code == 1
    assert "not a trust anchor" in done.stderr


def test_view_writes_html_and_pdf(files: Path) -> None:
    html, pdf = files / "out.html", files / "out.pdf"
    anchor = ("--trust", files / "anchor.json")
    done = run("certificate", "view", files / "certificate.json", *anchor, "--html", html)
    assert done.exit_code == 0
    assert b"Erasure certificate" in html.read_bytes()
    done = run("certificate", "view", files / "certificate.json", "--pdf", pdf)
    assert done.exit_code == 2
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert run("certificate", "view", files / "certificate.json").exit_code == 1


def test_view_refuses_what_cannot_be_read(files: Path) -> None:
    broken = files / "broken.json"
    broken.write_bytes(b"{}")
    done = run("certificate", "view", broken, "--html", files / "out.html")
    assert done.exit_code == 1
    assert not (files / "out.html").exists()


def data_folder(tmp_path: Path) -> tuple[SigningRing, Path]:
    config = tmp_path / "kvrun.toml"
    config.write_text('[deployment]\nname = "chat"\nmodel = "m"\n[instance]\ndata_dir = "data"\n')
    ring = SigningRing(tmp_path / "data/signing", now=lambda: 1_800_000_000.0)
    key = ring.load_or_create(KeyPurpose.CHECKPOINT)
    (tmp_path / "data/audit").mkdir(parents=True)
    signer = Ed25519Signer("kvrun/chat/host", key.private_key)
    (tmp_path / "data/audit" / SIGNER_NAME).write_text(signer.key.text() + "\n")
    return ring, config


def test_trust_export_prints_public_keys_and_nothing_private(tmp_path: Path) -> None:
    ring, config = data_folder(tmp_path)
    certificate = ring.load_or_create(KeyPurpose.CERTIFICATE)
    claim = ring.load_or_create(KeyPurpose.CLAIM)
    done = run("trust", "export", "--config", config)
    assert done.exit_code == 0
    anchor = parse_anchor(done.stdout.encode())
    assert {key.purpose for key in anchor.keys} == {"certificate", "checkpoint"}
    assert [key.name for key in anchor.logs()] == ["kvrun/chat/host"]
    public = certificate.private_key.public_key().public_bytes_raw()
    assert public in [raw_key(key) for key in anchor.keys]
    assert claim.key_id not in done.stdout
    stored = json.loads(next((tmp_path / "data/signing").glob("certificate-*")).read_bytes())
    assert stored["privateKey"] not in done.stdout


def test_trust_export_names_every_own_log_and_the_configured_witnesses(tmp_path: Path) -> None:
    ring, config = data_folder(tmp_path)
    ring.load_or_create(KeyPurpose.CERTIFICATE)
    ledger = tmp_path / "data/erasure/ledger"
    ledger.mkdir(parents=True)
    key = ring.load_or_create(KeyPurpose.CHECKPOINT).private_key
    (ledger / SIGNER_NAME).write_text(Ed25519Signer("kvrun/chat/host/erasures", key).key.text())
    (tmp_path / "witnesses").write_text(Operator().witness_key.text() + "\n")
    with config.open("a") as file:
        file.write('[witness]\nurls = ["https://w.example"]\nkeys_file = "witnesses"\n')
    anchor = parse_anchor(run("trust", "export", "--config", config).stdout.encode())
    assert [key.name for key in anchor.logs()] == ["kvrun/chat/host", "kvrun/chat/host/erasures"]
    assert [key.name for key in anchor.witnesses()] == ["witness.example/w1"]


def test_trust_export_keeps_revoked_keys_with_their_time(tmp_path: Path) -> None:
    ring, config = data_folder(tmp_path)
    old = ring.load_or_create(KeyPurpose.CERTIFICATE)
    ring.rotate(KeyPurpose.CERTIFICATE)
    ring.revoke(old.key_id)
    anchor = parse_anchor(run("trust", "export", "--config", config).stdout.encode())
    revoked = {key.key_id: key.revoked_at for key in anchor.keys if key.purpose == "certificate"}
    assert len(revoked) == 2
    assert revoked[old.key_id] == 1_800_000_000


def test_trust_export_lists_a_revoked_log_key_as_revoked_only(tmp_path: Path) -> None:
    ring, config = data_folder(tmp_path)
    ring.load_or_create(KeyPurpose.CERTIFICATE)
    old = ring.load_or_create(KeyPurpose.CHECKPOINT)
    new = ring.rotate(KeyPurpose.CHECKPOINT)
    ring.revoke(old.key_id)
    anchor = parse_anchor(run("trust", "export", "--config", config).stdout.encode())
    fresh = new.private_key.public_key().public_bytes_raw()
    assert [key.public_key for key in anchor.logs()] == [fresh]
    assert old.key_id in {key.key_id for key in anchor.keys if key.revoked_at is not None}


def test_trust_export_trusts_no_log_key_that_is_not_its_own(tmp_path: Path) -> None:
    ring, config = data_folder(tmp_path)
    ring.load_or_create(KeyPurpose.CERTIFICATE)
    stranger = Operator(log_id="kvrun/other").log_signer.key.text()
    (tmp_path / "data/audit" / SIGNER_NAME).write_text(stranger + "\n")
    assert "kvrun/other" not in run("trust", "export", "--config", config).stdout


def test_trust_export_lets_no_log_be_spoken_for_by_the_keys_of_another_part(
    tmp_path: Path,
) -> None:
    ring, config = data_folder(tmp_path)
    ring.load_or_create(KeyPurpose.CERTIFICATE)
    folder = tmp_path / "data/control"
    own = SigningRing(folder / "signing", now=lambda: 1_800_000_000.0)
    keys = {
        "kvrun/chat/host": ring.load_or_create(KeyPurpose.CHECKPOINT),
        "kvrun/control/host": own.load_or_create(KeyPurpose.CHECKPOINT),
    }
    (folder / "audit").mkdir()
    signer = Ed25519Signer("kvrun/control/host", keys["kvrun/control/host"].private_key)
    (folder / "audit" / SIGNER_NAME).write_text(signer.key.text() + "\n")
    anchor = parse_anchor(run("trust", "export", "--config", config).stdout.encode())
    assert {(key.name, key.public_key) for key in anchor.logs()} == {
        (name, key.private_key.public_key().public_bytes_raw()) for name, key in keys.items()
    }
    forged = Ed25519Signer("kvrun/control/host", keys["kvrun/chat/host"].private_key)
    (folder / "audit" / SIGNER_NAME).write_text(forged.key.text() + "\n")
    anchor = parse_anchor(run("trust", "export", "--config", config).stdout.encode())
    assert [key.name for key in anchor.logs()] == ["kvrun/chat/host"]


def test_trust_export_before_the_first_start_says_what_to_do(tmp_path: Path) -> None:
    _, config = data_folder(tmp_path)
    done = run("trust", "export", "--config", config)
    assert done.exit_code == 1
    assert "kvrun up" in done.stderr


def test_trust_show_prints_fingerprints(files: Path, issued: Issued) -> None:
    done = run("trust", "show", files / "anchor.json")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 100
    rows = json.loads(run("trust", "show", files / "anchor.json", "--json").stdout)
    assert {row["what"] for row in rows} == {"certificate", "log", "witness"}
    assert all(len(row["fingerprint"].split()) == 16 for row in rows)


def test_segments_are_verified_with_an_anchor_too(tmp_path: Path, files: Path) -> None:
    empty = tmp_path / "audit"
    empty.mkdir()
    done = run("verify", empty, "--trust", files / "anchor.json")
    assert "log (none)" in done.stdout
    assert done.exit_code == 0
