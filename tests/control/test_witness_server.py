"""A witness that remembers: it signs honest growth, and no fork, rollback or wrong proof."""

import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from witness_rig import NOW, ORIGIN, Log, open_state

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.control.witness_request import SIZE_TYPE, AddCheckpoint, parse_request
from kvrun.control.witness_server import Cosigner, Reply
from kvrun.control.witness_state import (
    MAX_REFUSALS,
    Remembered,
    WitnessStateError,
    read_key,
    read_logs,
)
from kvrun.keys.errors import FolderBusyError

LOG = Log(40)


class Witness:
    """A cosigner in a folder, which can be closed and opened again."""

    def __init__(self, folder: Path, *logs: Log) -> None:
        self.folder = folder
        self.keys = [log.key for log in logs or (LOG,)]
        self.time = float(NOW)
        self.open()

    def open(self) -> None:
        self.state = open_state(self.folder)
        self.cosigner = Cosigner(self.state, self.keys, now=lambda: self.time)

    def reopen(self) -> None:
        self.state.close()
        self.open()

    def ask(self, log: Log, old_size: int, size: int | None = None) -> Reply:
        return self.cosigner.add_checkpoint(log.request(old_size, size))

    def signed(self, log: Log, old_size: int, size: int | None = None) -> int:
        """The time of a cosignature that must be there and hold."""
        reply = self.ask(log, old_size, size)
        assert reply.status == 200, reply
        opened = open_checkpoint(log.note(size) + reply.body, [log.key], [self.state.key])
        assert [item.name for item in opened.cosigned_by] == ["witness.test/w1"]
        return opened.cosigned_by[0].time


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "witness")


def test_honest_growth_is_cosigned_with_the_time(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 7) == NOW
    witness.time += 60
    assert witness.signed(LOG, 7, 8) == NOW + 60
    assert witness.signed(LOG, 8, 8) == NOW + 60
    assert witness.signed(LOG, 8) == NOW + 60


def test_a_fork_is_refused_where_the_honest_log_goes_on(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    fork = Log(40, forked_at=15)
    reply = witness.ask(fork, 20)
    assert (reply.status, reply.body) == (422, LOG.note(20))
    same_size = witness.ask(fork, 20, 20)
    assert (same_size.status, same_size.body, same_size.media_type) == (409, b"20\n", SIZE_TYPE)
    assert witness.signed(LOG, 20) == NOW
    refused = witness.state.refusals(ORIGIN)
    assert [(item.status, item.note) for item in refused] == [
        (422, fork.note()),
        (409, fork.note(20)),
    ]


def test_a_rollback_is_refused_and_the_size_is_told(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    for old_size in (0, 5, 10):
        reply = witness.ask(LOG, old_size, 10)
        assert (reply.status, reply.body, reply.media_type) == (409, b"20\n", SIZE_TYPE)
    assert witness.signed(LOG, 20, 21)


def test_a_wrong_proof_is_refused_and_the_right_one_taken(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    right = LOG.proof(20, 33)
    for wrong in (right[:-1], [*right, bytes(32)], [bytes(32), *right[1:]], []):
        body = AddCheckpoint(20, tuple(wrong), LOG.note(33)).encode()
        assert witness.cosigner.add_checkpoint(body).status == 422
    body = AddCheckpoint(0, (bytes(32),), LOG.note(33)).encode()
    assert witness.cosigner.add_checkpoint(body).status == 409
    assert witness.signed(LOG, 20, 33)


def test_the_first_proof_must_be_empty(witness: Witness) -> None:
    body = AddCheckpoint(0, (bytes(32),), LOG.note(33)).encode()
    assert witness.cosigner.add_checkpoint(body).status == 422
    assert witness.signed(LOG, 0, 33)


def test_unknown_logs_and_keys_are_told_apart(witness: Witness) -> None:
    assert witness.ask(Log(5, origin="kvrun.test/other"), 0).status == 404
    assert witness.ask(Log(5, seed=2), 0).status == 403
    forged = LOG.request(0, 5).replace(b"\n5\n", b"\n6\n")
    assert witness.cosigner.add_checkpoint(forged).status == 403
    assert read_logs(witness.folder) == []


def test_an_old_size_above_the_checkpoint_is_a_bad_request(witness: Witness) -> None:
    body = AddCheckpoint(9, (), LOG.note(8)).encode()
    assert witness.cosigner.add_checkpoint(body).status == 400


def test_each_log_has_a_memory_of_its_own(tmp_path: Path) -> None:
    other = Log(9, origin="kvrun.test/instances/two", seed=2)
    witness = Witness(tmp_path / "witness", LOG, other)
    assert witness.signed(LOG, 0, 30)
    assert witness.signed(other, 0)
    assert witness.signed(LOG, 30)
    views = read_logs(witness.folder)
    assert [(view.origin, view.size) for view in views] == [(ORIGIN, 40), (other.origin, 9)]
    assert read_key(witness.folder) == witness.state.key.text()


def test_memory_and_key_survive_a_restart(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    key = witness.state.key
    witness.reopen()
    assert witness.state.key == key
    assert witness.ask(Log(40, forked_at=15), 20).status == 422
    assert witness.signed(LOG, 20)


def test_a_small_step_back_of_the_clock_is_held_and_a_wrong_clock_does_not_stay(
    witness: Witness,
) -> None:
    assert witness.signed(LOG, 0, 20) == NOW
    witness.time -= 120
    assert witness.signed(LOG, 20, 21) == NOW
    witness.time = NOW + 10 * 365 * 86_400
    assert witness.signed(LOG, 21, 22) == witness.time
    witness.time = NOW + 60
    assert witness.signed(LOG, 22, 23) == NOW + 60


def test_of_many_at_once_no_two_sizes_are_rolled_back(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 1)
    replies: list[tuple[int, int]] = []

    def submit(size: int) -> None:
        replies.append((size, witness.ask(LOG, 1, size).status))

    threads = [threading.Thread(target=submit, args=(size,)) for size in range(2, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [size for size, status in replies if status == 200]
    assert len(won) == 1
    assert {status for _, status in replies} == {200, 409}
    remembered = witness.state.remembered(ORIGIN)
    assert remembered is not None
    assert remembered.size == won[0]


def test_evidence_is_bounded_and_cannot_be_crowded_out(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    for size in range(21, 40):
        noise = AddCheckpoint(20, (bytes(32),), LOG.note(size)).encode()
        assert witness.cosigner.add_checkpoint(noise).status == 422
    fork = Log(40, forked_at=15)
    for _ in range(2):
        assert witness.ask(fork, 20, 20).status == 409
    statuses = [item.status for item in witness.state.refusals(ORIGIN)]
    assert statuses == [422] * MAX_REFUSALS + [409]


def test_the_file_itself_refuses_to_go_back(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    witness.state.close()
    with sqlite3.connect(witness.folder / "witness.db") as database:
        for change in (
            "UPDATE logs SET size = 19",
            "UPDATE logs SET root = x'00'",
            "UPDATE logs SET origin = 'other'",
            "DELETE FROM logs",
        ):
            with pytest.raises(sqlite3.IntegrityError):
                database.execute(change)


def test_what_changed_meanwhile_is_not_overwritten(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    stale = Remembered(10, bytes(32), b"", NOW)
    new = Remembered(30, bytes(32), b"", NOW)
    assert not witness.state.remember(ORIGIN, stale, new)
    assert not witness.state.remember(ORIGIN, None, new)


def test_a_witness_without_its_memory_does_not_go_on_under_its_key(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    witness.state.close()
    (witness.folder / "witness.db").unlink()
    with pytest.raises(WitnessStateError, match="forgotten"):
        witness.open()


def test_a_witness_keeps_its_name_and_its_key(witness: Witness) -> None:
    witness.state.close()
    with pytest.raises(WitnessStateError, match=r"is witness\.test/w1\+"):
        open_state(witness.folder, "witness.test/w2")
    state = open_state(witness.folder, None)
    assert state.key.name == "witness.test/w1"
    state.close()
    for path in (witness.folder / "keys").glob("*.json"):
        path.unlink()
    with pytest.raises(WitnessStateError, match="key of the witness"):
        open_state(witness.folder)


def test_a_witness_needs_a_name_and_a_folder_of_its_own(witness: Witness, tmp_path: Path) -> None:
    with pytest.raises(WitnessStateError, match="no witness"):
        open_state(tmp_path / "new", None)
    with pytest.raises(FolderBusyError):
        open_state(witness.folder)


def test_files_are_for_their_owner_only(witness: Witness) -> None:
    assert witness.signed(LOG, 0, 20)
    assert witness.folder.stat().st_mode & 0o777 == 0o700
    for path in witness.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=12))
def test_whatever_is_asked_only_one_history_is_ever_cosigned(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int, bool]]
) -> None:
    """Claims of two histories in any order: cosigned sizes rise, and all are of one of the two."""
    histories = {False: LOG, True: Log(40, forked_at=3)}
    witness = Witness(tmp_path_factory.mktemp("witness") / "state")
    cosigned: list[tuple[int, bool]] = []
    for old_size, size, forked in asked:
        log = histories[forked]
        if old_size > size:
            continue
        if witness.ask(log, old_size, size).status == 200:
            assert old_size == (cosigned[-1][0] if cosigned else 0)
            cosigned.append((size, forked))
    witness.state.close()
    assert cosigned == sorted(cosigned, key=lambda item: item[0])
    assert len({forked for size, forked in cosigned if size > 3}) <= 1


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_bad_request(body: bytes) -> None:
    with pytest.raises(NoteFormatError):
        parse_request(body)


proofs = st.lists(st.binary(min_size=32, max_size=32), max_size=63)


@given(st.integers(0, 2**53 - 1), proofs, st.binary())
def test_any_request_comes_back_from_its_bytes(
    old_size: int, proof: list[bytes], note: bytes
) -> None:
    request = AddCheckpoint(old_size, tuple(proof), note)
    assert parse_request(request.encode()) == request


@pytest.mark.parametrize(
    "body",
    [
        b"old 05\n\nnote",
        b"old -1\n\nnote",
        b"old \n\nnote",
        b"old 5 \n\nnote",
        b"old 99999999999999999\n\nnote",
        "old \u0665\n\nnote".encode(),
        b"Old 5\n\nnote",
        b"5\n\nnote",
        b"old 5\n",
        b"old 5\nAAAA\n\nnote",
        b"old 5\n" + b"A" * 43 + b"B\n\nnote",
        b"old 5\n" + b"A" * 43 + b"=\n" * 1 + b"A" * 44 + b"\n\nnote",
        b"old 5\n" + (b"A" * 43 + b"=\n") * 64 + b"\nnote",
        b"old 5\n\n" + b"n" * 70_000,
    ],
)
def test_a_malformed_request_is_refused(body: bytes) -> None:
    with pytest.raises(NoteFormatError):
        parse_request(body)


def test_a_damaged_memory_is_named_and_not_replaced(witness: Witness) -> None:
    witness.state.close()
    (witness.folder / "witness.db").write_bytes(b"not a database, but as long as one" * 40)
    with pytest.raises(WitnessStateError, match=r"witness\.db cannot be used"):
        witness.open()
