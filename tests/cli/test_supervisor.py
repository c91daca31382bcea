"""The process tree, with real small processes as children."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrun.launch.readiness import unix_accepts
from kvrun.launch.supervisor import (
    ChildError,
    ChildSpec,
    ChildState,
    StopRequestedError,
    Supervisor,
)

CHILD = """
import os, signal, sys, time
name, folder, mode = sys.argv[1:4]
print(name, "says hello", flush=True)
if mode == "never-ready":
    time.sleep(60)
if mode.startswith("shares"):
    from multiprocessing import resource_tracker, shared_memory
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.buf[:6] = b"secret"
    # As after a kill: nobody takes the name away.
    resource_tracker.unregister(memory._name, "shared_memory")
    open(f"{folder}/segment", "w").write(memory.name)
open(f"{folder}/{name}.ready", "w").close()
if mode == "shares and dies":
    mode = "dies"
if mode == "dies":
    while not os.path.exists(f"{folder}/die"):
        time.sleep(0.01)
    print("something terrible", flush=True)
    sys.exit(7)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = os.fork()
    if grandchild:
        open(f"{folder}/grandchild", "w").write(str(grandchild))
def stop(*_):
    open(f"{folder}/stopped", "a").write(name + " ")
    sys.exit(0)
if mode != "stubborn":
    signal.signal(signal.SIGTERM, stop)
while True:
    time.sleep(0.05)
"""


def spec(folder: Path, name: str, mode: str = "runs", *, ready_s: float = 20) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=(sys.executable, "-c", CHILD, name, str(folder), mode),
        environment={},
        ready=(folder / f"{name}.ready").exists,
        ready_timeout_s=ready_s,
        stop_timeout_s=0.5 if mode == "stubborn" else 10,
    )


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    owner = Supervisor(tmp_path / "logs")
    yield owner
    owner.stop_all()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    states: list[tuple[str, ChildState]] = []
    supervisor = Supervisor(tmp_path / "logs", lambda name, state: states.append((name, state)))
    for name in ("a", "b"):
        supervisor.start(spec(tmp_path, name))
    pids = supervisor.pids()
    supervisor.stop_all()
    assert (tmp_path / "stopped").read_text().split() == ["b", "a"]
    assert not any(alive(pid) for pid in pids.values())
    assert states == [
        ("a", ChildState.STARTING),
        ("a", ChildState.READY),
        ("b", ChildState.STARTING),
        ("b", ChildState.READY),
        ("b", ChildState.STOPPING),
        ("b", ChildState.STOPPED),
        ("a", ChildState.STOPPING),
        ("a", ChildState.STOPPED),
    ]


def test_a_child_that_dies_is_named_with_its_last_words_and_the_others_can_be_stopped(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start(spec(tmp_path, "daemon"))
    supervisor.start(spec(tmp_path, "engine", "dies"))
    other = supervisor.pids()["daemon"]
    (tmp_path / "die").touch()
    with pytest.raises(ChildError) as caught:
        supervisor.watch()
    text = caught.value.diagnostics()
    assert "engine ended by itself (exit status 7)" in text
    assert "something terrible" in text
    assert str(supervisor.log_path("engine")) in text
    supervisor.stop_all()
    assert not alive(other)


def test_a_child_killed_by_a_signal_is_said_to_be(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(spec(tmp_path, "engine"))
    os.kill(supervisor.pids()["engine"], signal.SIGKILL)
    with pytest.raises(ChildError, match=r"engine ended by itself \(killed by SIGKILL"):
        supervisor.watch()


def test_a_death_while_another_child_starts_is_noticed(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start(spec(tmp_path, "daemon", "dies"))
    (tmp_path / "die").touch()
    with pytest.raises(ChildError, match="daemon ended by itself"):
        supervisor.start(spec(tmp_path, "engine", "never-ready"))


def test_a_child_that_does_not_become_ready_is_an_error(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    with pytest.raises(ChildError, match="engine was not ready after 1 s") as caught:
        supervisor.start(spec(tmp_path, "engine", "never-ready", ready_s=1))
    assert "engine says hello" in caught.value.diagnostics()


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path, supervisor: Supervisor) -> None:
    absent = ChildSpec("engine", ("/no/such/program",), {}, lambda: True)
    with pytest.raises(ChildError, match="engine cannot be started"):
        supervisor.start(absent)


def test_a_stubborn_child_is_killed_with_what_it_started(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start(spec(tmp_path, "engine", "stubborn"))
    assert eventually((tmp_path / "grandchild").exists)
    leader = supervisor.pids()["engine"]
    grandchild = int((tmp_path / "grandchild").read_text())
    assert alive(grandchild)
    supervisor.stop("engine")
    assert not alive(leader)
    assert eventually(lambda: not alive(grandchild))


def test_one_child_can_be_stopped_and_started_again_and_keeps_the_log_before(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start(spec(tmp_path, "daemon"))
    supervisor.start(spec(tmp_path, "engine"))
    first = supervisor.pids()["engine"]
    supervisor.stop("engine")
    (tmp_path / "engine.ready").unlink()
    supervisor.start(spec(tmp_path, "engine"))
    assert supervisor.pids()["engine"] != first
    assert list(supervisor.pids()) == ["daemon", "engine"]
    log = supervisor.log_path("engine")
    assert "hello" in log.with_suffix(".log.1").read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_socket_that_a_killed_child_left_does_not_stop_the_next(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    path = tmp_path / "child.sock"
    code = f"""
import socket, time
server = socket.socket(socket.AF_UNIX)
server.bind({str(path)!r})
server.listen()
time.sleep(60)
"""
    child = ChildSpec(
        "engine",
        (sys.executable, "-c", code),
        {},
        lambda: unix_accepts(path),
        sockets=(path,),
    )
    supervisor.start(child)
    supervisor.kill("engine")
    assert path.exists()
    supervisor.start(child)


def test_a_stop_request_ends_a_start_that_waits(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.request_stop()
    with pytest.raises(StopRequestedError):
        supervisor.start(spec(tmp_path, "engine", "never-ready"))


def test_a_secret_reaches_the_child_and_is_in_no_argument_variable_or_log(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    secret = os.urandom(32).hex()
    code = textwrap.dedent("""
        import hashlib, os, sys, time
        data = os.fdopen(int(os.environ["KVRUN_TOKEN_FD"]), "rb").read()
        open(sys.argv[1], "w").write(hashlib.sha256(data).hexdigest())
        time.sleep(60)
    """)
    digest = tmp_path / "digest"
    child = ChildSpec(
        "instance",
        (sys.executable, "-c", code, str(digest)),
        {"PATH": "/usr/bin"},
        lambda: digest.exists() and len(digest.read_text()) == 64,
        secret=secret.encode(),
    )
    supervisor.start(child)
    import hashlib

    assert digest.read_text() == hashlib.sha256(secret.encode()).hexdigest()
    process = Path(f"/proc/{supervisor.pids()['instance']}")
    assert secret.encode() not in (process / "cmdline").read_bytes()
    assert secret.encode() not in (process / "environ").read_bytes()
    assert secret not in supervisor.log_path("instance").read_text()
    assert secret not in repr(child)


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from kvrun.launch.supervisor import ChildSpec, Supervisor
        child = '''
        import os, sys, time
        from kvrun.process import PARENT_VARIABLE, end_with_parent
        end_with_parent(os.environ[PARENT_VARIABLE])
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(60)
        '''
        import textwrap
        owner = Supervisor(Path({str(tmp_path)!r}))
        owner.start(ChildSpec("child", (sys.executable, "-c", textwrap.dedent(child)), {{}},
            lambda: Path({str(tmp_path / "pid")!r}).exists()))
        owner.watch()
    """)
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid_file = tmp_path / "pid"
    assert eventually(lambda: pid_file.exists() and pid_file.read_text() != "", 20)
    child = int(pid_file.read_text())
    assert alive(child)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not alive(child))


@pytest.mark.parametrize("how", ["stopped", "killed", "died"])
def test_shared_memory_of_a_child_does_not_outlive_it(
    supervisor: Supervisor, tmp_path: Path, how: str
) -> None:
    mode = "shares and dies" if how == "died" else "shares"
    supervisor.start(spec(tmp_path, "engine", mode))
    segment = Path("/dev/shm") / (tmp_path / "segment").read_text()
    assert segment.read_bytes().startswith(b"secret")
    if how == "stopped":
        supervisor.stop("engine")
    elif how == "killed":
        supervisor.kill("engine")
    else:
        (tmp_path / "die").touch()
        with pytest.raises(ChildError):
            supervisor.watch()
    assert not segment.exists()
