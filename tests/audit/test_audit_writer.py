"""The writer: durable before it says so, honest after a failure, one at a time."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulator import LOG_ID, QUIET, Clock, sealed, signer

from kvrun.audit import (
    AuditEvent,
    AuditLimits,
    AuditLog,
    AuditLogBusyError,
    AuditLogDamagedError,
    AuditMode,
    AuditRecordError,
    AuditUnavailableError,
    Event,
    Record,
)
from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.cursor import LogCursor, read_records
from kvrun.audit.files import verify_files
from kvrun.audit.segment import SegmentFile, read_chunks
from kvrun.audit.verdict import Aspect, Code, Verdict, VerificationReport
from kvrun.audit.verify import Trust

Open = Callable[..., AuditLog]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def open_log(folder: Path) -> Iterator[Open]:
    opened: list[AuditLog] = []
    clock = Clock()

    def open_it(limits: AuditLimits = QUIET, mode: AuditMode = AuditMode.REQUIRE) -> AuditLog:
        log = AuditLog.open(
            folder, log_id=LOG_ID, signer=signer(), now=clock, mode=mode, limits=limits
        )
        opened.append(log)
        return log

    yield open_it
    for log in opened:
        if not log._closed:
            log.close()


def verify(folder: Path) -> VerificationReport:
    return verify_files([folder], Trust(keys=(signer().key,)))


def fine(folder: Path) -> bool:
    report = verify(folder)
    failed = [item for item in report.findings if item.verdict is Verdict.FAIL]
    assert not failed
    return report.exit_code == 0 and report.verdict(Aspect.INTEGRITY) is Verdict.PASS


def events_of(folder: Path) -> list[tuple[Event, str]]:
    return [(record.event, record.reason) for record in read_records(folder)]


class FailingDisk:
    """Makes the live segment fail, before or after its bytes reached the file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = False
        real_sync, real_write = os.fdatasync, os.pwrite
        self.write_half = False

        def sync(descriptor: int) -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            real_sync(descriptor)

        def write(descriptor: int, data: memoryview, offset: int) -> int:
            if self.broken and self.write_half:
                real_write(descriptor, data[: len(data) // 2], offset)
                raise OSError(28, "No space left on device")
            return real_write(descriptor, data, offset)

        monkeypatch.setattr("kvrun.audit.segment.os.fdatasync", sync)
        monkeypatch.setattr("kvrun.audit.segment.os.pwrite", write)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


def test_a_committed_record_is_in_the_file_and_a_buffered_one_is_not(
    folder: Path, open_log: Open
) -> None:
    log = open_log()
    seq = log.append(sealed(1))
    assert log.durable_size == seq
    assert len(list(read_records(folder))) == seq
    log.commit()
    assert log.durable_size == seq + 1
    assert list(read_records(folder))[-1].request_id == "req-1"


def test_records_nobody_waits_for_are_committed_in_the_background(
    folder: Path, open_log: Open
) -> None:
    log = open_log(AuditLimits())
    log.append(sealed(1))
    deadline = time.monotonic() + 5
    while log.durable_size < log.size and time.monotonic() < deadline:
        time.sleep(0.005)
    assert log.durable_size == log.size == 2


def test_a_hundred_records_that_nobody_waits_for_do_not_wait_for_the_time(
    folder: Path, open_log: Open
) -> None:
    log = open_log()
    for number in range(99):
        log.append(sealed(number))
    assert log.durable_size == 1
    log.append(sealed(99))
    deadline = time.monotonic() + 20
    while log.durable_size < 101 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert log.durable_size == 101


def test_an_idle_log_writes_heartbeats_and_signs_them(folder: Path, open_log: Open) -> None:
    log = open_log(AuditLimits(heartbeat_seconds=0.05, checkpoint_seconds=0.05))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        size = open_checkpoint(log.checkpoint, [signer().key]).checkpoint.size
        if size >= 3:
            break
        time.sleep(0.02)
    assert size >= 3
    assert [event for event, _ in events_of(folder)][1:3] == [Event.HEARTBEAT] * 2


def test_files_are_private(folder: Path, open_log: Open) -> None:
    open_log().append_durable(sealed(1))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_clean_stop_and_start_leaves_no_gap_and_a_new_epoch(folder: Path, open_log: Open) -> None:
    open_log().close()
    open_log().close()
    events = [event for event, _ in events_of(folder)]
    assert events == [Event.LOG_OPENED, Event.LOG_CLOSED] * 2
    assert [record.epoch for record in read_records(folder)] == [1, 1, 2, 2]
    assert fine(folder)


def test_segments_roll_by_size_and_the_log_goes_on_after_each(folder: Path, open_log: Open) -> None:
    for _ in range(3):
        log = open_log(AuditLimits(segment_bytes=2000, group_seconds=60))
        for number in range(12):
            log.append_durable(sealed(number))
        log.close()
    assert len(list(folder.glob("segment-*.jsonl"))) > 4
    assert [record.seq for record in read_records(folder)] == list(range(3 * 14))
    assert [record.seq for record in read_records(folder, from_seq=20)] == list(range(20, 42))
    assert fine(folder)


def test_a_full_segment_left_by_a_crash_is_closed_with_a_true_manifest(
    folder: Path, open_log: Open
) -> None:
    log = open_log()
    for number in range(10):
        log.append_durable(sealed(number))
    crash(log)
    open_log(AuditLimits(segment_bytes=2000, group_seconds=60)).close()
    assert len(list(folder.glob("*.manifest.json"))) == 1
    assert fine(folder)


def test_segments_roll_by_time(folder: Path, open_log: Open) -> None:
    log = open_log(AuditLimits(segment_seconds=0.05))
    deadline = time.monotonic() + 10
    while len(list(folder.glob("segment-*.jsonl"))) < 3 and time.monotonic() < deadline:
        log.append_durable(sealed(1))
        time.sleep(0.02)
    log.close()
    assert len(list(folder.glob("segment-*.jsonl"))) >= 3
    assert fine(folder)


def test_released_segments_are_gone_and_the_log_still_continues(
    folder: Path, open_log: Open
) -> None:
    log = open_log(AuditLimits(segment_bytes=2000, group_seconds=60))
    for number in range(30):
        log.append_durable(sealed(number))
    stored, before = log.usage, len(list(folder.glob("segment-*.jsonl")))
    assert log.release(through_seq=log.size) > 0
    assert log.usage < stored
    assert len(list(folder.glob("segment-*.jsonl"))) == 1 < before
    log.close()
    log = open_log()
    log.append_durable(sealed(99))
    log.close()
    report = verify(folder)
    assert report.exit_code == 0
    assert report.first_seq > 0


def test_a_second_writer_is_refused(open_log: Open) -> None:
    open_log()
    with pytest.raises(AuditLogBusyError):
        open_log()


def test_an_invalid_event_changes_nothing(folder: Path, open_log: Open) -> None:
    log = open_log()
    with pytest.raises(AuditRecordError):
        log.append(AuditEvent(event=Event.SEALED, reason="\u00e9"))
    log.close()
    assert fine(folder)


def test_appending_after_close_is_refused(open_log: Open) -> None:
    log = open_log()
    log.close()
    assert not log.available
    with pytest.raises(AuditUnavailableError):
        log.append(sealed(1))


def test_whatever_was_accepted_before_the_stop_is_durable(folder: Path, open_log: Open) -> None:
    log = open_log(AuditLimits())
    accepted: list[int] = []

    def work() -> None:
        try:
            while True:
                accepted.append(log.append(sealed(1)))
        except AuditUnavailableError:
            return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(accepted) < 100 and any(thread.is_alive() for thread in threads):
        time.sleep(0.001)
    log.close()
    for thread in threads:
        thread.join()
    assert len(accepted) >= 100
    seqs = {record.seq for record in read_records(folder)}
    assert set(accepted) <= seqs
    assert events_of(folder)[-1][0] is Event.LOG_CLOSED
    assert fine(folder)


def test_an_unwritable_folder_is_unavailable_and_leaves_no_lock(
    folder: Path, open_log: Open, disk: FailingDisk
) -> None:
    disk.broken = True
    with pytest.raises(AuditUnavailableError, match="Input/output error"):
        open_log()
    disk.broken = False
    open_log().close()
    assert fine(folder)


@pytest.mark.parametrize("write_half", [False, True])
def test_require_mode_refuses_while_the_disk_fails_and_then_records_a_gap(
    folder: Path, open_log: Open, disk: FailingDisk, write_half: bool
) -> None:
    log = open_log()
    log.append_durable(sealed(1))
    disk.broken, disk.write_half = True, write_half
    log.append(sealed(2))
    with pytest.raises(AuditUnavailableError):
        log.commit()
    assert not log.available
    with pytest.raises(AuditUnavailableError):
        log.append(sealed(3))
    with pytest.raises(AuditUnavailableError):
        log.commit()
    disk.broken = False
    log.commit()
    assert log.available
    log.append_durable(sealed(4))
    log.close()
    requests = [record.request_id for record in read_records(folder) if record.request_id]
    assert requests == ["req-1", "req-2", "req-4"]
    assert events_of(folder).count((Event.GAP, "write_failed")) == 1
    assert fine(folder)


def test_best_effort_mode_goes_on_and_counts_what_it_lost(
    folder: Path, open_log: Open, disk: FailingDisk
) -> None:
    log = open_log(mode=AuditMode.BEST_EFFORT)
    disk.broken = True
    log.append(sealed(1))
    log.commit()
    assert [log.append(sealed(number)) for number in range(7)] == [-1] * 7
    assert not log.available
    assert log.lost == 7
    disk.broken = False
    log.commit()
    assert log.available
    log.close()
    gaps = [record for record in read_records(folder) if record.event is Event.GAP]
    assert [record.lost for record in gaps] == [7]
    report = verify(folder)
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
    assert Code.RECORDS_LOST in report.codes(Aspect.COMPLETENESS)
    assert report.exit_code == 1


def test_the_background_thread_makes_the_log_available_again(
    open_log: Open, disk: FailingDisk
) -> None:
    log = open_log(AuditLimits(retry_seconds=0.02))
    disk.broken = True
    with pytest.raises(AuditUnavailableError):
        log.append_durable(sealed(1))
    disk.broken = False
    deadline = time.monotonic() + 10
    while not log.available and time.monotonic() < deadline:
        time.sleep(0.01)
    assert log.available


def test_a_signer_that_fails_makes_the_log_unavailable(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append_durable(sealed(1))

    def refuse(text: bytes) -> bytes:
        raise RuntimeError("the key service does not answer")

    monkeypatch.setattr(log._files._signer, "sign", refuse)
    with pytest.raises(AuditUnavailableError, match="key service"):
        log.sign_checkpoint()
    monkeypatch.undo()
    log.commit()
    assert log.available


def test_a_used_up_quota_stops_the_log_until_segments_are_released(
    folder: Path, open_log: Open
) -> None:
    limits = AuditLimits(segment_bytes=2000, group_seconds=60, quota_bytes=8000)
    log = open_log(limits)
    with pytest.raises(AuditUnavailableError, match="quota of 8000 bytes"):
        fill(log)
    assert log.usage > 0.8
    log.release(through_seq=log.size)
    log.commit()
    assert log.available
    log.close()
    assert verify(folder).verdict(Aspect.INTEGRITY) is Verdict.PASS


def test_a_real_file_size_limit_behaves_like_a_full_disk(folder: Path, open_log: Open) -> None:
    log = open_log()
    log.append_durable(sealed(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(AuditUnavailableError):
            fill(log)
        assert not log.available
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    log.commit()
    log.close()
    assert (Event.GAP, "write_failed") in events_of(folder)
    assert fine(folder)


@pytest.mark.parametrize(
    "tail",
    [b'{"blocks":3,"epo', bytes(100), b"\n", b"garbage\n{}\n", bytes(50) + b"\n" + bytes(9)],
)
def test_a_torn_tail_is_cut_kept_aside_and_recorded(
    folder: Path, open_log: Open, tail: bytes
) -> None:
    log = open_log()
    log.append_durable(sealed(1))
    crash(log)
    segment = next(folder.glob("segment-*.jsonl"))
    intact = segment.read_bytes()
    segment.write_bytes(intact + tail)
    open_log().close()
    assert segment.read_bytes().startswith(intact)
    assert next(folder.glob("*.cut-at-*")).read_bytes() == tail
    assert events_of(folder)[2:4] == [(Event.LOG_OPENED, ""), (Event.GAP, "torn_tail")]
    assert fine(folder)


def test_whole_records_lost_in_a_damaged_tail_are_counted(folder: Path, open_log: Open) -> None:
    log = open_log()
    log.sign_checkpoint()
    for number in range(5):
        log.append_durable(sealed(number))
    crash(log)
    segment = next(folder.glob("segment-*.jsonl"))
    lines = segment.read_bytes().split(b"\n")
    lines[3] = bytes(len(lines[3]))
    segment.write_bytes(b"\n".join(lines))
    open_log().close()
    gaps = [record for record in read_records(folder) if record.event is Event.GAP]
    assert [(record.reason, record.lost) for record in gaps] == [("torn_tail", 2)]
    assert verify(folder).verdict(Aspect.COMPLETENESS) is Verdict.FAIL


def test_a_crash_without_damage_is_still_recorded(folder: Path, open_log: Open) -> None:
    log = open_log()
    log.append_durable(sealed(1))
    crash(log)
    open_log().close()
    assert (Event.GAP, "unclean_stop") in events_of(folder)
    assert fine(folder)


def test_a_log_shorter_than_its_checkpoint_is_not_continued(folder: Path, open_log: Open) -> None:
    open_log().close()
    segment = next(folder.glob("segment-*.jsonl"))
    segment.write_bytes(segment.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(AuditLogDamagedError, match="covers 2 records, 1 are left"):
        open_log()
    segment.unlink()
    with pytest.raises(AuditLogDamagedError, match="none are left"):
        open_log()


def test_a_log_changed_under_its_checkpoint_is_not_continued(folder: Path, open_log: Open) -> None:
    log = open_log()
    log.append_durable(sealed(1))
    log.close()
    segment = next(folder.glob("segment-*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"outcome":"ok"', b'"outcome":"denied"'))
    with pytest.raises(AuditLogDamagedError):
        open_log()


def test_another_key_does_not_continue_a_log(folder: Path, open_log: Open) -> None:
    open_log().close()
    with pytest.raises(AuditLogDamagedError, match="not signed by this log's key"):
        AuditLog.open(folder, log_id=LOG_ID, signer=signer(2), now=Clock(), limits=QUIET)


def test_concurrent_appenders_lose_and_mix_up_nothing(folder: Path, open_log: Open) -> None:
    log = open_log(AuditLimits(segment_bytes=50_000))
    seen: dict[int, str] = {}

    def work(worker: int) -> None:
        for number in range(150):
            event = sealed(worker * 1000 + number)
            (seq,) = log.append_durable(event)
            seen[seq] = event.request_id

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert len(seen) == 8 * 150
    records = {record.seq: record.request_id for record in read_records(folder)}
    assert all(records[seq] == request for seq, request in seen.items())
    assert fine(folder)


def test_64_readers_of_a_live_log_see_only_whole_records_in_order(
    folder: Path, open_log: Open
) -> None:
    log = open_log(AuditLimits(segment_bytes=30_000, group_seconds=0.001))
    last, wrong = 401, []

    def follow() -> None:
        """Reads on from where it was, until it has seen the last record."""
        cursor, seqs = LogCursor(folder), list[int]()
        try:
            while len(seqs) < last:
                seqs += [record.seq for record in cursor.read()]
                time.sleep(0.005)
            assert seqs == list(range(last))
        except Exception as error:
            wrong.append(error)

    def read_again() -> None:
        """Reads the log from its start, again and again."""
        seqs = list[int]()
        try:
            while len(seqs) < last:
                seqs = [record.seq for record in read_records(folder)]
                assert seqs == list(range(len(seqs)))
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=follow) for _ in range(60)]
    readers += [threading.Thread(target=read_again) for _ in range(4)]
    for reader in readers:
        reader.start()
    for start in range(0, 400, 10):
        log.append_durable(*(sealed(start + number) for number in range(10)))
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(list(folder.glob("segment-*.jsonl"))) > 3


def test_a_reader_starts_anywhere_and_survives_a_collection(folder: Path, open_log: Open) -> None:
    log = open_log(AuditLimits(segment_bytes=2000, group_seconds=60))
    for number in range(30):
        log.append_durable(sealed(number))
    for start in range(31):
        assert [r.seq for r in read_records(folder, from_seq=start)] == list(range(start, 31))
    assert list(read_records(folder, from_seq=99)) == []
    early = LogCursor(folder)
    first = early.read()
    log.release(through_seq=log.size)
    left = [record.seq for record in read_records(folder)]
    assert left == list(range(left[0], 31))
    # The segment it was in is gone; it goes on with what is there.
    seen = [record.seq for record in first]
    while records := early.read():
        seen += [record.seq for record in records]
    assert seen == sorted(set(seen))
    assert seen[-len(left) :] == left


def test_chunks_are_whole_lines_whatever_their_size(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"x" * size + b"\n" for size in range(40)) + b"torn")
    for size in (1, 7, 64, 10_000):
        chunks = list(read_chunks(path, size))
        assert b"".join(chunks) == path.read_bytes()
        assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])


def test_no_acknowledged_record_is_lost_when_the_writer_is_killed(folder: Path) -> None:
    acknowledged: dict[int, str] = {}
    chance = random.Random(7)
    for round_ in range(20):
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crash_writer.py")), folder, str(round_)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        output = first + child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        for line in output.decode().splitlines(keepends=True):
            if line.endswith("\n"):
                seq, request = line.split()
                acknowledged[int(seq)] = request
    AuditLog.open(folder, log_id=LOG_ID, signer=signer(), now=time.time).close()
    records: dict[int, Record] = {record.seq: record for record in read_records(folder)}
    assert len(acknowledged) > 100
    assert all(records[seq].request_id == request for seq, request in acknowledged.items())
    assert sum(record.event is Event.GAP for record in records.values()) == 20
    assert fine(folder)


def fill(log: AuditLog) -> None:
    for number in range(100):
        log.append_durable(sealed(number))


def crash(log: AuditLog) -> None:
    """Let go of the files as a killed process does: nothing more is written."""
    with log._lock:
        log._closing = True
        log._wake.notify()
    log._thread.join()
    log._closed = True
    assert isinstance(log._files._file, SegmentFile)
    os.close(log._files._file._descriptor)
    os.close(log._lock_file)
