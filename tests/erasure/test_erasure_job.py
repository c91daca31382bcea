"""A job is whole on disk or as it was, is checked when read, and runs each step once in order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ErasedKey, Job, JobFileError, JobState, JobStore
from kvrun.erasure.run import run_job

NOW = 1_800_000_000.0
STEPS = ("tombstone", "drain", "destroy", "scrub", "unlink", "prove", "certify")


def job(number: int = 1) -> Job:
    return Job(
        id=f"{number:024x}",
        kind=RequestKind.SESSION,
        workspace="w",
        deployment="d",
        requester="tests",
        requested_at=NOW,
        commitments=["0" * 64],
        keys=[ErasedKey(key_id="ab" * 16, generation=7, tenant_ref="t", session_ref="s")],
    )


class Recorder:
    """Steps that note their names; the one named by ``fails`` raises."""

    def __init__(self, fails: str = "") -> None:
        self.called: list[str] = []
        self.fails = fails

    def _step(self, name: str, given_job: Job) -> Job:
        self.called.append(name)
        if name == self.fails:
            raise ErasureError(name)
        return given_job

    def tombstone(self, job: Job) -> Job:
        return self._step("tombstone", job)

    def drain(self, job: Job) -> Job:
        return self._step("drain", job)

    def destroy(self, job: Job) -> Job:
        return self._step("destroy", job)

    def scrub(self, job: Job) -> Job:
        return self._step("scrub", job)

    def unlink(self, job: Job) -> Job:
        return self._step("unlink", job)

    def prove(self, job: Job) -> Job:
        return self._step("prove", job)

    def certify(self, job: Job) -> Job:
        return self._step("certify", job)


def test_a_job_reads_back_as_it_was_written(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs")
    store.save(job(1))
    store.save(job(2))
    later = msgspec.structs.replace(job(1), state=JobState.DRAINED)
    store.save(later)
    assert store.load(later.id) == later
    assert sorted(found.id for found in store.jobs()) == [job(1).id, job(2).id]
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "jobs").iterdir())


@pytest.mark.parametrize("name", ["", "0" * 23, "../0" * 6, "G" * 24, "0" * 25])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    assert JobStore(tmp_path).load(name) is None


@given(st.data())
def test_a_damaged_job_is_named_and_never_taken_for_another(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = JobStore(Path(folder))
        store.save(job())
        path = Path(folder) / f"{job().id}.job"
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        with pytest.raises(JobFileError, match="damaged"):
            store.load(job().id)


def test_a_job_under_another_name_is_refused(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(job(1))
    (tmp_path / f"{job(1).id}.job").rename(tmp_path / f"{job(2).id}.job")
    with pytest.raises(JobFileError, match="holds the job"):
        list(store.jobs())


def test_every_step_runs_once_and_is_saved_with_its_time(tmp_path: Path) -> None:
    steps, saved = Recorder(), []
    done = run_job(job(), steps, save=lambda j: saved.append(j.state), now=lambda: NOW)
    assert tuple(steps.called) == STEPS
    assert saved == [JobState.TOMBSTONED, JobState.DESTROYED, JobState.PROVEN, JobState.CERTIFIED]
    assert [entry.name for entry in done.steps] == [str(state) for state in list(JobState)[1:]]


@pytest.mark.parametrize("fails", STEPS)
def test_a_job_that_failed_goes_on_where_it_stopped(fails: str) -> None:
    saved = [job()]
    with pytest.raises(ErasureError):
        run_job(job(), Recorder(fails), save=saved.append, now=lambda: NOW)
    again = Recorder()
    done = run_job(saved[-1], again, save=saved.append, now=lambda: NOW)
    begins = max(at for at in (0, 1, 3, 6) if at <= STEPS.index(fails))
    assert tuple(again.called) == STEPS[begins:]
    assert done.state is JobState.CERTIFIED
    assert len(done.steps) == len(STEPS)


def full_disk(_: Job) -> None:
    raise JobFileError("no space left")


def test_a_full_disk_keeps_no_key_alive_and_certifies_nothing() -> None:
    steps = Recorder()
    with pytest.raises(JobFileError):
        run_job(job(), steps, save=full_disk, now=lambda: NOW)
    assert steps.called == ["tombstone", "drain", "destroy"]
