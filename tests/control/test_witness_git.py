"""A Git repository as a witness: what it holds is not contradicted, and it is driven safely."""

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from witness_rig import ORIGIN, Log, liar

from kvrun.audit.checkpoint import open_checkpoint, parse_checkpoint
from kvrun.audit.note import parse_note
from kvrun.control.witness import (
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
    ask,
)
from kvrun.control.witness_git import GitWitness, committed_notes, note_path
from kvrun.git import GitAccess

LOG = Log(40)
FORK = Log(40, forked_at=15)
ACCESS = GitAccess(timeout_s=60)
BRANCH = "kvrun-checkpoints"


def git(folder: Path, *arguments: str) -> str:
    """Git as a person uses it."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    names = ("-c", "user.name=Eve", "-c", "user.email=eve@example", "-c", "gc.auto=0")
    command = ["git", "-C", str(folder), *names, *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def witness(repository: Path, remote: Path | str | None = None) -> GitWitness:
    where = None if remote is None else str(remote)
    return GitWitness(repository, branch=BRANCH, remote=where, access=ACCESS)


def add(to: GitWitness, log: Log, size: int, old_size: int = 0) -> None:
    """Put a checkpoint to the witness, with the proof from where it stopped."""
    assert ask(to, old_size, log.note(size), lambda old: log.proof(old, size)) == b""


def sizes(repository: Path) -> list[int]:
    """The sizes that a repository holds, oldest first."""
    notes = [item.note for item in committed_notes(repository, BRANCH, ACCESS)]
    return [parse_checkpoint(parse_note(note).text).size for note in reversed(notes)]


def test_each_checkpoint_is_a_commit_that_plain_git_shows(tmp_path: Path) -> None:
    to = witness(tmp_path / "w.git")
    for old_size, size in ((0, 10), (10, 11), (11, 40)):
        assert to.add_checkpoint(old_size, LOG.proof(old_size, size), LOG.note(size)) == b""
    path = note_path(ORIGIN)
    assert git(tmp_path / "w.git", "show", f"{BRANCH}:{path}") == LOG.note().decode().strip()
    subjects = git(tmp_path / "w.git", "log", "--format=%s", BRANCH).splitlines()
    assert subjects == [f"checkpoint: {size} records of {ORIGIN}" for size in (40, 11, 10)]
    assert sizes(tmp_path / "w.git") == [10, 11, 40]
    assert (tmp_path / "w.git").stat().st_mode & 0o777 == 0o700


def test_a_fork_is_refused_with_the_note_that_the_log_signed(tmp_path: Path) -> None:
    to = witness(tmp_path / "w.git")
    add(to, LOG, 20)
    for size in (20, 33):
        with pytest.raises(WitnessRefusedError, match="forked") as refused:
            to.add_checkpoint(20, FORK.proof(20, size), FORK.note(size))
        assert refused.value.evidence == LOG.note(20)
        assert open_checkpoint(refused.value.evidence, [LOG.key]).signed_by
    assert to.add_checkpoint(20, LOG.proof(20, 33), LOG.note(33)) == b""


def test_a_rollback_and_a_wrong_proof_are_refused(tmp_path: Path) -> None:
    to = witness(tmp_path / "w.git")
    add(to, LOG, 20)
    with pytest.raises(WitnessRefusedError, match="rolled back") as refused:
        to.add_checkpoint(5, LOG.proof(5, 10), LOG.note(10))
    assert refused.value.evidence == LOG.note(20)
    with pytest.raises(WitnessRefusedError):
        to.add_checkpoint(20, [bytes(32)], LOG.note(33))
    assert sizes(tmp_path / "w.git") == [20]
    add(to, LOG, 33, old_size=20)


def test_a_repository_that_missed_checkpoints_is_asked_from_where_it_stopped(
    tmp_path: Path,
) -> None:
    to = witness(tmp_path / "w.git")
    add(to, LOG, 10)
    with pytest.raises(WitnessOutOfStepError) as out_of_step:
        to.add_checkpoint(25, LOG.proof(25), LOG.note())
    assert out_of_step.value.size == 10
    add(to, LOG, 40, old_size=25)


def test_the_same_checkpoint_again_is_no_second_commit(tmp_path: Path) -> None:
    to = witness(tmp_path / "w.git")
    add(to, LOG, 10)
    add(to, LOG, 10)
    add(to, LOG, 10, old_size=10)
    assert sizes(tmp_path / "w.git") == [10]


def test_logs_share_a_repository(tmp_path: Path) -> None:
    other = Log(9, origin="../../etc/.git", seed=2)
    to = witness(tmp_path / "w.git")
    add(to, LOG, 10)
    add(to, other, 9)
    add(to, LOG, 20, old_size=10)
    names = git(tmp_path / "w.git", "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    assert sorted(names) == sorted([note_path(ORIGIN), note_path(other.origin)])
    assert all(name.count("/") == 2 and ".." not in name for name in names)


def test_a_log_id_of_any_length_has_a_place(tmp_path: Path) -> None:
    add(witness(tmp_path / "w.git"), Log(3, origin="x" * 3000), 3)
    assert sizes(tmp_path / "w.git") == [3]


def test_a_work_tree_and_its_branch_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    (folder / "file").write_text("mine")
    git(folder, "add", "file")
    git(folder, "commit", "-qm", "mine")
    (folder / "file").write_text("mine, changed")
    before = git(folder, "status", "--porcelain", "--branch")
    add(witness(folder), LOG, 10)
    assert git(folder, "status", "--porcelain", "--branch") == before
    assert sizes(folder) == [10]
    git(folder, "checkout", "-qf", BRANCH)
    with pytest.raises(WitnessUnavailableError, match="checked out"):
        add(witness(folder), LOG, 20)


def test_what_is_pushed_is_what_counts(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "remote.git"))
    to = witness(tmp_path / "w.git", tmp_path / "remote.git")
    add(to, LOG, 10)
    add(to, LOG, 20)
    assert sizes(tmp_path / "remote.git") == [10, 20]
    assert to.name == f"git {tmp_path}/remote.git"
    # A second installation, which lost its own copy, learns from the remote.
    again = witness(tmp_path / "new.git", f"file://{tmp_path}/remote.git")
    with pytest.raises(WitnessRefusedError) as refused:
        add(again, FORK, 30)
    assert refused.value.evidence == LOG.note(20)
    add(again, LOG, 30)
    add(to, LOG, 40)
    assert sizes(tmp_path / "remote.git") == [10, 20, 30, 40]


def test_two_that_push_at_once_both_come_through(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "remote.git"))
    logs = [Log(9, origin=f"kvrun.test/{number}") for number in range(3)]
    failed: list[Exception] = []

    def run(number: int) -> None:
        try:
            to = witness(tmp_path / f"{number}.git", tmp_path / "remote.git")
            add(to, logs[number], 9)
        except WitnessUnavailableError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(sizes(tmp_path / "remote.git")) == 3


def test_a_remote_whose_history_was_rewritten_is_no_witness_any_more(tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    to = witness(tmp_path / "w.git", remote)
    add(to, LOG, 10)
    add(to, LOG, 20)
    tip = git(remote, "rev-parse", BRANCH)
    git(remote, "update-ref", f"refs/heads/{BRANCH}", f"{BRANCH}~1")
    with pytest.raises(WitnessUnavailableError, match="history was rewritten") as error:
        add(to, FORK, 30)
    assert tip in error.value.message
    git(remote, "update-ref", "-d", f"refs/heads/{BRANCH}")
    with pytest.raises(WitnessUnavailableError, match="history was rewritten"):
        add(to, FORK, 30)
    git(remote, "update-ref", f"refs/heads/{BRANCH}", tip)
    add(to, LOG, 30)


def test_a_push_that_fails_leaves_the_checkpoint_to_the_next_time(tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    to = witness(tmp_path / "w.git", remote)
    add(to, LOG, 10)
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(WitnessUnavailableError, match="push failed"):
        add(to, LOG, 20)
    hook.unlink()
    add(to, LOG, 30)
    assert sizes(remote) == [10, 30]


def test_what_is_no_checkpoint_in_the_repository_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    git(tmp_path, "init", "-q", "-b", BRANCH, str(folder))
    path = folder / note_path(ORIGIN)
    path.parent.mkdir(parents=True)
    for content, reason in ((b"hello\n", "no checkpoint"), (bytes(2 << 20), "at most")):
        path.write_bytes(content)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "change")
        git(folder, "checkout", "-q", "--detach")
        with pytest.raises(WitnessUnavailableError, match=reason):
            add(witness(folder), LOG, 10)
        git(folder, "checkout", "-qf", BRANCH)


def test_hooks_and_configuration_of_the_user_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    script = f"#!/bin/sh\ntouch {trap}\nexit 1\n"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "pre-push", "post-update", "pre-commit"):
        (hooks / name).write_text(script)
        (hooks / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f"[core]\nhooksPath = {hooks}\n[user]\nname = Somebody\n[commit]\ngpgSign = true\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    repository = tmp_path / "w.git"
    git(tmp_path, "init", "-q", "--bare", str(repository))
    git(repository, "config", "core.hooksPath", str(hooks))
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "remote.git"))
    add(witness(repository, tmp_path / "remote.git"), LOG, 10)
    assert not trap.exists()
    assert git(tmp_path / "remote.git", "log", "-1", "--format=%an <%ae>", BRANCH) == (
        "kvrun <kvrun@localhost>"
    )


def test_a_token_goes_out_as_a_header_and_in_no_argument(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    heads: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        heads.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 403 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with liar(behave) as url:
        to = GitWitness(
            tmp_path / "w.git",
            branch=BRANCH,
            remote=f"{url}/audit.git",
            access=GitAccess(timeout_s=30, token_file=token),
        )
        with pytest.raises(WitnessUnavailableError) as error:
            add(to, LOG, 10)
    assert b"Authorization: Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0" in heads[0]
    assert "s3cret" not in error.value.diagnostics()
    assert "s3cret" not in (tmp_path / "w.git" / "config").read_text()


def test_a_remote_that_hangs_is_left_with_its_helpers(tmp_path: Path) -> None:
    gone: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            gone.append(data)
        gone.append(b"")

    with liar(behave) as url:
        access = GitAccess(timeout_s=0.5)
        to = GitWitness(tmp_path / "w.git", branch=BRANCH, remote=f"{url}/a.git", access=access)
        with pytest.raises(WitnessUnavailableError, match=r"within 0\.5 s"):
            add(to, LOG, 10)
    assert gone[-1] == b"", "the helper's connection is closed, so the helper has ended"


@pytest.mark.parametrize("remote", ["ext::touch {trap}", "ext::sh -c touch% {trap}"])
def test_a_remote_is_never_a_command(tmp_path: Path, remote: str) -> None:
    trap = tmp_path / "trap"
    with pytest.raises(WitnessUnavailableError, match="not allowed"):
        add(witness(tmp_path / "w.git", remote.format(trap=trap)), LOG, 10)
    assert not trap.exists()


def test_a_folder_that_is_no_repository_is_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WitnessUnavailableError, match="no Git repository"):
        add(witness(tmp_path), LOG, 10)
    with pytest.raises(WitnessUnavailableError, match="no Git repository"):
        list(committed_notes(tmp_path / "none", BRANCH, ACCESS))


def test_without_git_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WitnessUnavailableError, match="git cannot be started") as error:
        add(witness(tmp_path / "w.git"), LOG, 10)
    assert error.value.hint == "Install git."
