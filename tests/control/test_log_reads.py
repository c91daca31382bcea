"""Whoever reads a log with kvrun is on record in the control plane's own log before they see it."""

import fcntl
import json
import os
import shutil
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from collect_rig import WORKSPACE, Rig
from simulator import LOG_ID, honest
from typer.testing import CliRunner

from kvrun.audit.errors import AuditUnavailableError
from kvrun.audit.files import verify_files
from kvrun.audit.note import parse_note
from kvrun.audit.record import Event, decode_record
from kvrun.audit.segment import list_segments
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust
from kvrun.cli.audit import app

run = CliRunner().invoke
CONFIG = f"""
[deployment]
workspace = "{WORKSPACE}"
[instance]
data_dir = "data"
"""


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A control plane that has collected the log in its data folder once."""
    (tmp_path / "kvrun.toml").write_text(CONFIG)
    rig = Rig(tmp_path / "data")
    shutil.copytree(honest(tmp_path / "world").folder, rig.layout.audit)
    assert rig.collect(rig.layout.audit).size
    return rig


def kvrun(rig: Rig, *arguments: str) -> str:
    result = run(app, [*arguments, "--config", str(rig.root.parent / "kvrun.toml")])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def reads(rig: Rig) -> list[str]:
    return [reason for event, reason in rig.logged() if event == Event.LOG_READ]


@pytest.mark.parametrize("command", ["show", "tail", "export"])
def test_a_read_is_on_record_with_the_command_the_user_and_how_far_the_log_had_come(
    rig: Rig, command: str
) -> None:
    assert len(kvrun(rig, command).splitlines()) >= 10
    lines = b"".join(path.read_bytes() for path in list_segments(rig.journal.folder)).splitlines()
    (record,) = [found for found in map(decode_record, lines) if found.event is Event.LOG_READ]
    assert record.reason == f"{command} by uid {os.getuid()}"
    assert (record.request_id, record.workspace, record.deployment) == (
        LOG_ID,
        WORKSPACE,
        "default",
    )
    text = parse_note((rig.layout.audit / "checkpoint").read_bytes()).text
    assert record.digest == sha256(text).hexdigest()
    report = verify_files([rig.journal.folder], Trust())
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS


def test_shipping_is_a_read(rig: Rig) -> None:
    shipped = rig.root / "shipped.jsonl"
    # The collection let go of what it stored.
    kvrun(rig, "ship", "--to", f"file:{shipped}", "--once", "--skip-missing")
    assert json.loads(shipped.read_text().splitlines()[0])["log"] == LOG_ID
    assert reads(rig) == [f"ship by uid {os.getuid()}"]


def test_nothing_is_shown_where_the_record_cannot_be_written(rig: Rig) -> None:
    shutil.rmtree(rig.journal.folder)
    # A folder in which nothing can be made, for root too.
    (rig.journal.folder / "lock").mkdir(parents=True)
    with pytest.raises(AuditUnavailableError):
        kvrun(rig, "show")
    result = run(app, ["show", "--config", str(rig.root.parent / "kvrun.toml")])
    assert result.stdout == ""


def test_before_the_first_collection_there_is_no_log_to_put_it_in(tmp_path: Path) -> None:
    (tmp_path / "kvrun.toml").write_text(CONFIG)
    rig = Rig(tmp_path / "data")
    shutil.copytree(honest(tmp_path / "world").folder, rig.layout.audit)
    assert kvrun(rig, "tail").count("\n") == 10
    assert not rig.layout.control.exists()


def test_another_folder_is_named_by_what_its_checkpoint_says_and_never_by_the_deployment(
    rig: Rig, tmp_path: Path
) -> None:
    other = honest(tmp_path / "other", "kvrun.test/instances/two").folder
    kvrun(rig, "show", "3", "--folder", str(other))
    (other / "checkpoint").write_bytes(b"no note\n")
    kvrun(rig, "show", "3", "--folder", str(other))
    lines = b"".join(path.read_bytes() for path in list_segments(rig.journal.folder)).splitlines()
    found = [item for item in map(decode_record, lines) if item.event is Event.LOG_READ]
    assert [item.request_id for item in found] == ["kvrun.test/instances/two", ""]
    assert [item.deployment for item in found] == ["", ""]


def test_a_folder_can_be_read_where_there_is_no_configuration(tmp_path: Path) -> None:
    folder = honest(tmp_path / "world").folder
    missing = str(tmp_path / "kvrun.toml")
    assert run(app, ["show", "3", "--folder", str(folder), "--config", missing]).exit_code == 0


def test_a_read_waits_while_a_collection_writes_its_own_entry(rig: Rig) -> None:
    descriptor = os.open(rig.journal.folder / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    done: list[str] = []
    reader = threading.Thread(target=lambda: done.append(kvrun(rig, "tail", "-n", "1")))
    reader.start()
    try:
        assert reads(rig) == []
        assert done == []
    finally:
        os.close(descriptor)
    reader.join(timeout=60)
    assert len(done) == 1
    assert reads(rig) == [f"tail by uid {os.getuid()}"]
