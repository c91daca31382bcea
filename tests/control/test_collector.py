"""An honest log is collected whole and once; what contradicts the memory stops with its name."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import (
    LOG_ID,
    QUIET,
    World,
    delete_everything,
    edit,
    forge_the_signature,
    fork_before_the_remembered_size,
    honest,
    rehash,
    replay_a_whole_other_log,
    rewrite_with_the_key,
    roll_the_disk_back,
    sealed,
    sign_with_another_key,
    signer,
)

from kvrun.audit import AuditLog
from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.merkle import verify_consistency
from kvrun.audit.segment import list_segments, segment_name
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust
from kvrun.control.alerts import AlertKind, UnknownAlertError
from kvrun.control.collected import checkpoint_name
from kvrun.control.collector import CollectOutcome
from kvrun.control.remembered import MemoryDamagedError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "control-plane")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return honest(tmp_path / "instance")


def grow(world: World, count: int = 30) -> None:
    """More honest records, and whole segments with them."""
    log = AuditLog.open(world.folder, log_id=LOG_ID, signer=signer(), now=world.clock, limits=QUIET)
    for number in range(count):
        log.append_durable(sealed(1000 + number))
    log.close()


def test_an_honest_log_is_collected_whole_and_its_closed_segments_are_released(
    rig: Rig, world: World
) -> None:
    before = {path.name: path.read_bytes() for path in world.segments()}
    lines = world.lines()
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED, report.message
    assert report.log == LOG_ID
    assert report.size == report.new_records == len(lines)
    kept = {path.name: path.read_bytes() for path in rig.folder(LOG_ID).glob("*.jsonl")}
    assert len(kept) == len(before) - 1 >= 2
    assert all(before[name] == content for name, content in kept.items())
    assert report.stored_size == sum(content.count(b"\n") for content in kept.values())
    assert [path.name for path in world.segments()] == [max(before)]
    assert report.freed_bytes == sum(map(len, kept.values()))
    tail = rig.memory.tail(LOG_ID).read_bytes()
    assert b"".join(kept[name] for name in sorted(kept)) + tail == b"".join(
        line + b"\n" for line in lines
    )
    assert rig.logged() == [("log_collected", "scheduled")]
    assert rig.alerts.all() == []


def test_a_second_collection_takes_only_what_is_new(rig: Rig, world: World) -> None:
    first = rig.collect(world.folder)
    assert rig.collect(world.folder).outcome is CollectOutcome.UNCHANGED
    before = {path.name: path.stat().st_mtime_ns for path in rig.folder(LOG_ID).iterdir()}
    grow(world)
    second = rig.collect(world.folder, "on_demand")
    assert second.outcome is CollectOutcome.COLLECTED
    assert second.new_records == second.size - first.size == 32  # 30, opened and closed
    after = {path.name: path.stat().st_mtime_ns for path in rig.folder(LOG_ID).iterdir()}
    assert len(after) > len(before)
    assert all(after[name] == moment for name, moment in before.items())
    assert rig.logged() == [("log_collected", "scheduled"), ("log_collected", "on_demand")]


def test_the_collected_folder_verifies_offline_with_the_collectors_checkpoint(
    rig: Rig, world: World
) -> None:
    report = rig.collect(world.folder)
    folder = rig.folder(LOG_ID)
    note = (folder / checkpoint_name(report.stored_size)).read_bytes()
    witness = read_keys(rig.layout.control / "collector.vkey")
    opened = open_checkpoint(note, [signer().key], witness)
    assert opened.checkpoint.size == report.stored_size
    assert opened.cosigned_by[0].time >= 1_700_100_000
    trust = Trust(keys=(signer().key,), witnesses=witness, remembered=(note,))
    verdict = verify_files([folder], trust)
    for aspect in (Aspect.INTEGRITY, Aspect.COMPLETENESS, Aspect.WITNESSED):
        assert verdict.verdict(aspect) is Verdict.PASS, verdict.findings
    assert verdict.next_seq == report.stored_size
    (folder / sorted(path.name for path in list_segments(folder))[-1]).unlink()
    assert verify_files([folder], trust).exit_code == 1


def test_the_control_planes_own_log_verifies(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    grow(world)
    rig.collect(world.folder)
    report = verify_files([rig.journal.folder], Trust())
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
    assert report.verdict(Aspect.FRESHNESS) is not Verdict.FAIL


def extended(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[World], None]:
    """The log goes on, signed by its key, after ``change`` was made to all lines."""

    def attack(world: World) -> None:
        stored = min(int(path.stem.removeprefix("segment-")) for path in world.segments())
        show_whole(world)
        grow(world)
        lines = change(world.lines())
        world.write(lines)
        world.sign()
        # Cut where the segments that were collected end, as the instance's own writer would.
        (whole,) = world.segments()
        whole.write_bytes(b"".join(line + b"\n" for line in lines[:stored]))
        rest = b"".join(line + b"\n" for line in lines[stored:])
        (world.folder / segment_name(stored)).write_bytes(rest)

    return attack


def of_the_whole(attack: Callable[[World], None]) -> Callable[[World], None]:
    def run(world: World) -> None:
        show_whole(world)
        attack(world)

    return run


def _edited(at: int) -> Callable[[list[bytes]], list[bytes]]:
    def change(lines: list[bytes]) -> list[bytes]:
        lines[at] = edit(lines[at])
        return lines

    return change


def _swapped(lines: list[bytes]) -> list[bytes]:
    lines[70], lines[71] = lines[71], lines[70]
    return lines


def _without(at: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: lines[:at] + lines[at + 1 :]


def cut_new_records_off(world: World) -> None:
    grow(world, 1)
    live = world.segments()[-1]
    live.write_bytes(b"".join(line + b"\n" for line in live.read_bytes().splitlines()[:-2]))


ATTACKS = {
    "the log is deleted": (delete_everything, AlertKind.LOG_MISSING),
    "the disk is rolled back": (roll_the_disk_back, AlertKind.ROLLED_BACK),
    "the log is rewritten at its size with the key": (
        of_the_whole(rewrite_with_the_key),
        AlertKind.FORKED,
    ),
    "a fork of the same size": (of_the_whole(fork_before_the_remembered_size), AlertKind.FORKED),
    "another key signs": (sign_with_another_key, AlertKind.KEY_CHANGED),
    "the signature is forged": (forge_the_signature, AlertKind.NOT_SIGNED),
    "another log is shown": (replay_a_whole_other_log, AlertKind.FOREIGN_LOG),
    "a verified record is changed and the log goes on": (
        extended(lambda lines: rehash(_edited(20)(lines))),
        AlertKind.FORKED,
    ),
    "a verified record is left out and the log goes on": (
        extended(lambda lines: rehash(_without(20)(lines))),
        AlertKind.FORKED,
    ),
    "a new record is changed": (extended(_edited(70)), AlertKind.CHAIN_BROKEN),
    "a new record is deleted": (extended(_without(70)), AlertKind.MISSING_RECORDS),
    "new records are swapped": (extended(_swapped), AlertKind.MISSING_RECORDS),
    "a new record is respelled": (
        extended(
            lambda lines: [
                line.replace(b'"blocks":3,', b'"blocks": 3,') if at == 70 else line
                for at, line in enumerate(lines)
            ]
        ),
        AlertKind.MALFORMED,
    ),
    "new records are cut off": (cut_new_records_off, AlertKind.TRUNCATED),
}


def show_whole(world: World) -> None:
    """Give back to the instance's folder what it released, as an attacker with a copy could."""
    original = honest(world.folder.parent / "copy").folder
    for path in original.glob("segment-*"):
        if not (world.folder / path.name).exists():
            shutil.copy(path, world.folder)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_stops_with_its_named_alert_and_what_was_collected_stays(
    rig: Rig, world: World, name: str
) -> None:
    attack, kind = ATTACKS[name]
    assert rig.collect(world.folder).outcome is CollectOutcome.COLLECTED
    kept = {path.name: path.read_bytes() for path in rig.folder(LOG_ID).iterdir()}
    attack(world)
    report = rig.collect(world.folder)
    remembered = rig.memory.find(LOG_ID)
    assert report.outcome is CollectOutcome.ALERT
    alert = rig.alert()
    assert alert.kind is kind, alert.detail
    assert report.alert == alert.id
    assert remembered is not None
    place = rig.alerts.place(alert.id)
    assert (place / "remembered-checkpoint").read_text() == remembered.note
    shown = world.folder / "checkpoint"
    assert (place / "shown-checkpoint").read_bytes() == (
        shown.read_bytes() if shown.exists() else b""
    )
    assert all((rig.folder(LOG_ID) / name).read_bytes() == kept[name] for name in kept)
    assert rig.logged()[-1] == ("log_alert", kind.value)
    again = rig.collect(world.folder)
    assert again.outcome is CollectOutcome.STOPPED
    assert len(rig.alerts.all()) == 1


def test_the_evidence_of_a_fork_holds_the_proof_that_fails(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    extended(lambda lines: rehash(_edited(60)(lines)))(world)
    rig.collect(world.folder)
    alert = rig.alert()
    assert alert.kind is AlertKind.FORKED
    place = rig.alerts.place(alert.id)
    assert {"proof.json", "records.jsonl", "remembered.json", "shown.vkey"} <= set(alert.files)
    proof = json.loads((place / "proof.json").read_bytes())
    old, new, found = (
        base64.b64decode(proof[name]) for name in ("old_root", "new_root", "found_root")
    )
    hashes = [base64.b64decode(item) for item in proof["hashes"]]
    sizes = proof["old_size"], proof["new_size"]
    assert not verify_consistency(*sizes, old, new, hashes)
    keys, notes = [signer().key], ("remembered-checkpoint", "shown-checkpoint")
    first, second = (
        open_checkpoint((place / name).read_bytes(), keys).checkpoint for name in notes
    )
    assert (first.size, first.root) == (sizes[0], old)
    assert (second.size, second.root) == (sizes[1], new)
    assert found != old


def test_collection_goes_on_after_an_acknowledgement_with_a_reason(
    rig: Rig, world: World, tmp_path: Path
) -> None:
    rig.collect(world.folder)
    away = tmp_path / "away"
    shutil.copytree(world.folder, away)
    roll_the_disk_back(world)
    rig.collect(world.folder)
    shutil.rmtree(world.folder)
    shutil.copytree(away, world.folder)
    grow(world)
    assert rig.collect(world.folder).outcome is CollectOutcome.STOPPED
    reason = "an old disk was mounted by mistake"
    rig.alarm.acknowledge(LOG_ID, reason, start_over=False)
    assert rig.logged()[-1] == ("alert_acknowledged", reason)
    assert rig.alert().acknowledged_because == reason
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED
    with pytest.raises(UnknownAlertError):
        rig.alarm.acknowledge(LOG_ID, "again", start_over=False)


def test_an_acknowledgement_alone_does_not_make_a_fork_acceptable(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    roll_the_disk_back(world)
    rig.collect(world.folder)
    rig.alarm.acknowledge(LOG_ID, "let us see", start_over=False)
    assert rig.collect(world.folder).outcome is CollectOutcome.ALERT
    assert [item.kind for item in rig.alerts.all()] == [AlertKind.ROLLED_BACK] * 2


def test_starting_over_collects_another_history_beside_the_first(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    first = {path.name: path.read_bytes() for path in rig.folder(LOG_ID).iterdir()}
    roll_the_disk_back(world)
    rig.collect(world.folder)
    rig.alarm.acknowledge(LOG_ID, "restored from the backup of Monday", start_over=True)
    grow(world)
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    assert remembered.generation == 2
    assert {path.name: path.read_bytes() for path in rig.folder(LOG_ID).iterdir()} == first
    second = verify_files([rig.folder(LOG_ID, 2)], Trust(keys=(signer().key,)))
    assert second.exit_code == 0
    assert second.next_seq == report.stored_size


def test_a_lost_memory_is_taken_up_again_from_what_was_countersigned(
    rig: Rig, world: World
) -> None:
    first = rig.collect(world.folder)
    shutil.rmtree(rig.layout.control / "logs")
    grow(world)
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.COLLECTED, report.message
    assert report.stored_size > first.stored_size
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    assert remembered.first.size == 0


def test_a_lost_memory_still_shows_a_rollback_behind_what_is_stored(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    shutil.rmtree(rig.layout.control / "logs")
    roll_the_disk_back(world)
    assert rig.collect(world.folder).outcome is CollectOutcome.ALERT
    assert rig.alert().kind is AlertKind.ROLLED_BACK


def test_a_damaged_memory_is_an_error_and_not_a_fresh_start(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    (path,) = (rig.layout.control / "logs").glob("*/remembered")
    path.write_bytes(path.read_bytes().replace(b'"generation":1', b'"generation":2'))
    with pytest.raises(MemoryDamagedError, match="damaged"):
        rig.collect(world.folder)


def test_another_content_under_a_stored_name_is_an_alert(rig: Rig, world: World) -> None:
    folder = rig.folder(LOG_ID)
    folder.mkdir(parents=True)
    (folder / "segment-0000000000000000.jsonl").write_bytes(b"something else\n")
    report = rig.collect(world.folder)
    assert report.outcome is CollectOutcome.ALERT
    assert rig.alert().kind is AlertKind.STORED_DIFFERS


def test_an_instance_that_shows_nothing_yet_is_not_an_alert(rig: Rig, tmp_path: Path) -> None:
    report = rig.collect(tmp_path / "nowhere")
    assert report.outcome is CollectOutcome.UNAVAILABLE
    assert rig.alerts.all() == []
