"""Certificates in the workspace's Storage: each once, never replaced, found by reference."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvrun.audit.cursor import read_records
from kvrun.audit.record import Event
from kvrun.cli.main import app
from kvrun.config import KvrunConfig, load_config
from kvrun.control.alerts import AlertKind
from kvrun.control.certificates import LOOK_EVERY_S
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import CertificatesReport, run_round
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.logproof import parse_log_proof
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines
from kvrun.instance.erasures import ErasureRequest
from kvrun.instance.parts import open_erasures, open_parts
from kvrun.storage import Storage, StorageError, open_storage
from support.s3_server import request, s3_server


@dataclass
class Clock:
    """The time now, and what a test adds to it."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Rig:
    """A deployment in ``root`` whose Storage is a bucket."""

    root: Path
    address: str
    options: dict[str, str]
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        assert request(self.address, "PUT", f"/{self.bucket}")[0] == 200
        (self.root / "d").mkdir(mode=0o700)
        options = "".join(f'{name} = "{value}"\n' for name, value in self.options.items())
        self.config_file = self.root / "kvrun.toml"
        self.config_file.write_text(
            f'[deployment]\nworkspace = "acme"\nname = "chat"\n'
            f'[instance]\ndata_dir = "{self.root}/d"\nmemory_bytes = "64MiB"\n'
            f'[storage]\nurl = "s3://{self.bucket}/below"\n[storage.options]\n{options}'
        )

    @property
    def bucket(self) -> str:
        return f"b{abs(hash(str(self.root)))}"

    @property
    def config(self) -> KvrunConfig:
        return load_config(self.config_file, {})

    @property
    def plane(self) -> ControlPlane:
        """A fresh one, as after a restart."""
        return ControlPlane(self.config, self.clock)

    @property
    def storage(self) -> Storage:
        return open_storage(f"s3://{self.bucket}/below", self.options)

    def erase(self, *references: str) -> list[str]:
        """One erasure a reference; the certificates' ids."""
        made = []
        with (
            open_parts(self.config) as parts,
            open_erasures(self.config, parts, None, NoEngines()) as erasures,
        ):
            for reference in references:
                parts.instance.open_session("alice", reference)
                scope = ErasureScope(RequestKind.SESSION, "alice", reference)
                made.append(erasures.erase(ErasureRequest(scope, "tests", reference)).id)
        return made

    def collect(self) -> CertificatesReport:
        return run_round(self.plane, reason="scheduled").certificates


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server() as served:
        yield served


@pytest.fixture
def rig(tmp_path: Path, s3: tuple[str, dict[str, str]]) -> Rig:
    return Rig(tmp_path, *s3)


def name(certificate_id: str) -> str:
    return f"acme/deployments/chat/certificates/{certificate_id}.json"


def test_each_is_stored_once_and_found_by_reference_where_nothing_else_is_left(rig: Rig) -> None:
    first, second = rig.erase("DSAR-1", "DSAR-2")
    assert rig.collect() == CertificatesReport(stored=2)
    assert rig.collect() == CertificatesReport()
    (third,) = rig.erase("DSAR-3")
    assert rig.collect() == CertificatesReport(stored=1)
    kept = {made: rig.plane.archive.get(made) for made in (first, second, third)}
    assert {made: rig.storage.get(name(made)) for made in kept} == kept

    shutil.rmtree(rig.root / "d")
    (found,) = rig.plane.certificates().find("DSAR-2")
    assert (found.id, found.kind, found.keys) == (second, "session", 1)
    assert [item.id for item in rig.plane.certificates().find()] == [first, second, third]
    assert rig.plane.certificates().get(second) == kept[second]
    with pytest.raises(ErasureError, match="no certificate 'none'"):
        rig.plane.certificates().get("none")
    with pytest.raises(ErasureError, match="no certificate"):
        rig.plane.certificates().get("../../secret")


def test_the_command_line_lists_and_fetches_them(rig: Rig) -> None:
    made, _ = rig.erase("DSAR-1", "DSAR-2")
    rig.collect()
    listed = kvrun(rig, "certificate", "list", "--ref", "DSAR-1", "--json")
    assert [item["id"] for item in json.loads(listed.stdout)] == [made]
    file = rig.root / "fetched.json"
    assert kvrun(rig, "certificate", "get", made, "-o", str(file)).exit_code == 0
    assert file.read_bytes() == rig.plane.archive.get(made)
    assert kvrun(rig, "certificate", "get", "none").exit_code != 0
    proof = rig.root / "another.log-proof"
    refused = kvrun(rig, "certificate", "get", made, "-o", str(proof))
    assert refused.exit_code != 0
    assert "its log proof has this name" in " ".join(refused.output.split())
    assert not proof.exists()


def test_what_is_there_under_its_name_is_left_and_alerted_once(rig: Rig) -> None:
    made, other = rig.erase("DSAR-1", "DSAR-2")
    rig.storage.create(name(made), b"something else")
    report = rig.collect()
    assert report.stored == 1
    (problem,) = report.problems
    assert f"{made}.json" in problem
    assert rig.storage.get(name(made)) == b"something else"
    assert rig.collect().problems == [problem]
    (alert,) = rig.plane.alerts.all()
    assert (alert.kind, alert.stops) == (AlertKind.STORED_DIFFERS, False)
    evidence = rig.plane.alerts.place(alert.id)
    assert (evidence / "in-storage").read_bytes() == b"something else"
    assert [item.id for item in rig.plane.certificates().find()] == [other]


def test_another_certificate_under_its_name_is_not_taken_for_it(rig: Rig) -> None:
    made, other = rig.erase("DSAR-1", "DSAR-2")
    rig.storage.create(name(made), rig.plane.archive.get(other) or b"")
    assert len(rig.collect().problems) == 1
    assert rig.plane.certificates().find("DSAR-1") == []


def test_one_that_is_deleted_in_storage_comes_back_and_is_alerted(rig: Rig) -> None:
    (made,) = rig.erase("DSAR-1")
    rig.collect()
    rig.storage.delete(name(made))
    assert rig.collect() == CertificatesReport(), "it looks once an hour"
    rig.clock.ahead_s = LOOK_EVERY_S
    report = rig.collect()
    assert report.stored == 1
    assert "gone from Storage" in report.problems[0]
    assert rig.storage.get(name(made)) == rig.plane.archive.get(made)
    assert len(rig.plane.alerts.all()) == 1
    rig.clock.ahead_s = 2 * LOOK_EVERY_S
    assert rig.collect() == CertificatesReport()


def test_a_storage_that_fails_midway_is_gone_on_with(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig.erase("DSAR-1", "DSAR-2", "DSAR-3")
    create, asked = Storage.create, []

    def fails_at_the_second(self: Storage, where: str, data: bytes) -> None:
        asked.append(where)
        if len(asked) == 2:
            raise StorageError("the store is away")
        create(self, where, data)

    shelf = rig.plane.certificates()
    archive = CertificateArchive(rig.plane.archive.folder)
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "create", fails_at_the_second)
        with pytest.raises(StorageError, match="away"):
            shelf.take(archive, rig.clock)
    assert [item.id for item in shelf.find()] == sorted(made)[:1]
    assert rig.collect() == CertificatesReport(stored=2)


def test_a_folder_in_the_data_folder_holds_them_already(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    config_file = tmp_path / "kvrun.toml"
    config_file.write_text(
        f'[instance]\ndata_dir = "{tmp_path}/d"\nmemory_bytes = "64MiB"\n',
    )
    config = load_config(config_file, {})
    with (
        open_parts(config) as parts,
        open_erasures(config, parts, None, NoEngines()) as erasures,
    ):
        parts.instance.open_session("alice", "a")
        scope = ErasureScope(RequestKind.SESSION, "alice", "a")
        made = erasures.erase(ErasureRequest(scope, "tests", "DSAR-1"))
    plane = ControlPlane(config)
    assert run_round(plane, reason="scheduled").certificates == CertificatesReport()
    assert [item.digest for item in plane.certificates().find("DSAR-1")] == [made.digest]


def certified(rig: Rig) -> list[str]:
    """The certificates on record in the control plane's own log, in order."""
    records = read_records(rig.plane.journal.folder)
    return [record.request_id for record in records if record.event is Event.CERTIFIED]


def test_the_control_planes_log_has_each_once_and_the_proof_is_beside_it(rig: Rig) -> None:
    first, second = sorted(rig.erase("DSAR-1", "DSAR-2"))
    rig.collect()
    (third,) = rig.erase("DSAR-3")
    for _ in range(2):
        rig.collect()
    assert certified(rig) == [first, second, third]

    anchor, got = rig.root / "anchor.json", rig.root / "got.json"
    anchor.write_bytes(kvrun(rig, "trust", "export").stdout_bytes)
    assert kvrun(rig, "certificate", "get", second, "-o", str(got)).exit_code == 0
    proof = got.with_suffix(".log-proof")
    for given, code, status in ((proof, "included", 0), (shown(rig, third), "not_in_log", 1)):
        verify = ["verify", str(got), "--trust", str(anchor), "--log-proof", str(given), "--json"]
        report = CliRunner().invoke(app, verify)
        assert report.exit_code == status, report.output
        (found,) = [c for c in json.loads(report.stdout)["checks"] if c["check"] == "control_log"]
        assert found["code"] == code
        assert "/control/" in found["detail"] or status


def shown(rig: Rig, certificate_id: str) -> Path:
    """The proof of a certificate, as a file."""
    file = rig.root / "other.log-proof"
    file.write_bytes(rig.plane.certificates().proof(certificate_id) or b"")
    return file


def test_a_proof_that_is_missing_comes_again_and_no_record_does(rig: Rig) -> None:
    made = rig.erase("DSAR-1", "DSAR-2")
    rig.collect()
    where = name(made[0]).replace(".json", ".log-proof")
    before = rig.storage.get(where)
    rig.storage.delete(where)
    rig.clock.ahead_s = LOOK_EVERY_S
    assert rig.collect() == CertificatesReport()
    assert sorted(certified(rig)) == sorted(made)
    digest = parse_log_proof(before).record.digest
    assert parse_log_proof(rig.storage.get(where)).record.digest == digest


def test_what_was_stored_before_there_were_proofs_gets_them_bit_by_bit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sorted(rig.erase("DSAR-1", "DSAR-2", "DSAR-3"))
    shelf = rig.plane.certificates()
    with rig.plane.hold():
        shelf.take(rig.plane.archive, rig.clock)
    monkeypatch.setattr("kvrun.control.certificates._PROVEN_AT_ONCE", 2)
    assert [shelf.proof(one) for one in made] == [None, None, None]
    rig.collect()
    assert [shelf.proof(one) is None for one in made] == [False, False, True]
    rig.collect()
    assert None not in [shelf.proof(one) for one in made]
    assert certified(rig) == made


def kvrun(rig: Rig, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--config", str(rig.config_file)])
