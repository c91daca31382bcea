"""What is pruned is stated, signed, and what is left verifies; a lost machine's log is closed."""

import json
from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import LOG_ID, World, honest, signer
from test_collector import grow

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.note import parse_note
from kvrun.audit.segment import list_segments
from kvrun.audit.statement import RETIREMENT, TOMBSTONE, open_statement
from kvrun.audit.verdict import Aspect, Code, Verdict, VerificationReport
from kvrun.audit.verify import Trust
from kvrun.control.collected import checkpoint_name
from kvrun.control.collector import CollectOutcome
from kvrun.control.cosigner import open_cosigner
from kvrun.control.retention import DAY_S, Pruned, Retention
from kvrun.control.retire import RetireError, retire
from kvrun.storage import Storage, StorageError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "control-plane")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return honest(tmp_path / "instance")


def prune(rig: Rig, keep_days: int = 396) -> Pruned | None:
    assert rig.storage is not None
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    cosigner = open_cosigner(rig.layout, rig.clock)
    return Retention(rig.storage, rig.memory, rig.journal, cosigner, rig.clock).prune(
        remembered, keep_days=keep_days
    )


def verify(rig: Rig) -> VerificationReport:
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    folder = rig.folder(LOG_ID)
    trust = Trust(
        keys=(signer().key,),
        witnesses=read_keys(rig.layout.control / "collector.vkey"),
        remembered=((folder / checkpoint_name(remembered.stored.size)).read_bytes(),),
    )
    return verify_files([folder], trust)


def test_nothing_is_pruned_before_its_time_or_where_all_is_kept(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    before = sorted(path.name for path in rig.folder(LOG_ID).iterdir())
    rig.clock.time += 395 * DAY_S
    assert prune(rig) is None
    rig.clock.time += 3 * DAY_S
    assert prune(rig, keep_days=0) is None
    assert sorted(path.name for path in rig.folder(LOG_ID).iterdir()) == before


def test_old_segments_leave_a_signed_tombstone_and_the_rest_verifies(
    rig: Rig, world: World
) -> None:
    first = rig.collect(world.folder)
    rig.clock.time += 397 * DAY_S
    grow(world)
    rig.collect(world.folder)
    segments = len(list_segments(rig.folder(LOG_ID)))
    pruned = prune(rig)
    assert pruned is not None
    assert pruned.records == first.stored_size
    assert pruned.kept == ""
    assert len(list_segments(rig.folder(LOG_ID))) == segments - pruned.segments > 0
    report = verify(rig)
    assert report.exit_code == 0, report.findings
    assert report.first_seq == first.stored_size
    assert report.verdict(Aspect.COMPLETENESS) is Verdict.PASS
    assert Code.PRUNED in report.codes(Aspect.COMPLETENESS)
    assert rig.logged()[-1] == ("log_pruned", "retention")
    assert rig.collect(world.folder).outcome is CollectOutcome.UNCHANGED
    grow(world)
    assert rig.collect(world.folder).outcome is CollectOutcome.COLLECTED


def test_a_second_pruning_continues_the_first(rig: Rig, world: World) -> None:
    for _ in range(2):
        rig.collect(world.folder)
        rig.clock.time += 397 * DAY_S
        grow(world)
    rig.collect(world.folder)
    rig.clock.time -= 397 * DAY_S
    assert prune(rig) is not None
    rig.clock.time += 397 * DAY_S
    assert prune(rig) is not None
    report = verify(rig)
    assert report.verdict(Aspect.COMPLETENESS) is Verdict.PASS
    assert sum(1 for item in report.findings if item.code is Code.PRUNED) == 2


def test_without_a_valid_tombstone_the_missing_start_is_not_accepted(
    rig: Rig, world: World
) -> None:
    rig.collect(world.folder)
    rig.clock.time += 397 * DAY_S
    grow(world)
    rig.collect(world.folder)
    prune(rig)
    (path,) = rig.folder(LOG_ID).glob("*.tombstone")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"reason":"retention"', b'"reason":"retentiom"'))
    report = verify(rig)
    assert report.verdict(Aspect.COMPLETENESS) is Verdict.FAIL
    assert Code.BAD_TOMBSTONE in report.codes()
    path.unlink()
    report = verify(rig)
    assert report.verdict(Aspect.COMPLETENESS) is Verdict.UNKNOWN
    assert Code.STARTS_LATE in report.codes()
    path.write_bytes(whole)
    trust = Trust(keys=(signer().key,))  # nobody who signed it is known
    assert Code.STARTS_LATE in verify_files([rig.folder(LOG_ID)], trust).codes()


def test_a_tombstone_cannot_be_taken_for_a_checkpoint(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    rig.clock.time += 397 * DAY_S
    prune(rig)
    (path,) = rig.folder(LOG_ID).glob("*.tombstone")
    trust = Trust(
        keys=(signer().key,),
        witnesses=read_keys(rig.layout.control / "collector.vkey"),
        remembered=(path.read_bytes(),),
    )
    report = verify_files([rig.folder(LOG_ID)], trust)
    assert Code.BAD_CHECKPOINT in report.codes(Aspect.INTEGRITY)


class Locked(Storage):
    """A store that deletes nothing: every object is under a retention lock."""

    def delete(self, name: str) -> None:
        raise StorageError(f"{name} is locked")


def test_what_a_locked_store_keeps_is_deleted_when_it_allows_it(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    rig.clock.time += 397 * DAY_S
    assert rig.storage is not None
    delete = rig.storage.delete
    rig.storage.delete = Locked.delete.__get__(rig.storage)  # type: ignore[method-assign]
    pruned = prune(rig)
    assert pruned is not None
    assert "is locked" in pruned.kept
    assert verify(rig).exit_code == 0
    rig.storage.delete = delete  # type: ignore[method-assign]
    assert prune(rig) is None
    assert list_segments(rig.folder(LOG_ID)) == []


def test_a_lost_machines_log_is_closed_with_what_is_known_and_what_never_will_be(
    rig: Rig, world: World
) -> None:
    report = rig.collect(world.folder)
    remembered = rig.memory.find(LOG_ID)
    assert remembered is not None
    assert rig.storage is not None
    known = {
        "storage": rig.storage,
        "memory": rig.memory,
        "journal": rig.journal,
        "cosigner": open_cosigner(rig.layout, rig.clock),
        "now": rig.clock,
    }
    statement = retire(LOG_ID, "burnt down", **known)
    assert (statement.size, statement.root) == (report.size, remembered.root.hex())
    assert statement.uncollected_from == remembered.seen.ts < statement.uncollected_until
    folder = rig.folder(LOG_ID)
    note = (folder / "retired").read_bytes()
    opened = open_statement(note, RETIREMENT, read_keys(rig.layout.control / "collector.vkey"))
    assert opened.log == LOG_ID
    assert opened.signed_by
    assert json.loads(opened.body)["reason"] == "burnt down"
    trust = Trust(
        keys=(signer().key,), remembered=((folder / checkpoint_name(report.size)).read_bytes(),)
    )
    whole = verify_files([folder], trust)
    assert whole.exit_code == 0, whole.findings
    assert whole.next_seq == report.size  # the open segment's records are there too
    assert rig.logged()[-1] == ("instance_retired", "burnt down")
    grow(world)
    assert rig.collect(world.folder).outcome is CollectOutcome.RETIRED
    with pytest.raises(RetireError, match="retired already"):
        retire(LOG_ID, "again", **known)
    with pytest.raises(RetireError, match="no log another"):
        retire("another", "x", **known)


def test_a_statement_of_one_kind_is_not_read_as_another(rig: Rig, world: World) -> None:
    rig.collect(world.folder)
    rig.clock.time += 397 * DAY_S
    prune(rig)
    (path,) = rig.folder(LOG_ID).glob("*.tombstone")
    assert parse_note(path.read_bytes()).text.startswith(TOMBSTONE.encode())
    with pytest.raises(Exception, match="no kvrun-audit-retirement"):
        open_statement(path.read_bytes(), RETIREMENT, ())
