"""Who may connect, what each role may say, and that nothing said harms the daemon."""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import socket
import stat
import struct
import time
from pathlib import Path

import pytest

from kvrun.errors import KvrunError
from kvrun.instance.client import AdminClient
from kvrun.instance.connection import Connection, InstanceUnavailableError
from kvrun.instance.protocol import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    AdminCall,
    BlockAt,
    Finished,
    GroupLayout,
    Hello,
    Load,
    Match,
    Message,
    OpenSession,
    Refused,
    Release,
    Role,
    SessionOpened,
    Store,
    encode_frame,
)
from support.byhand import HandEngine, hello, wait_for
from support.client import eventually, grant
from support.daemon import Daemon


def token(daemon: Daemon, role: Role) -> str:
    return {
        Role.GATEWAY: daemon.gateway_token,
        Role.ADMIN: daemon.admin_token,
    }.get(role, daemon.engine_token)


def connect(daemon: Daemon, role: Role, **fields: object) -> Connection:
    return Connection.connect(
        daemon.socket, hello(role, token(daemon, role), **fields), timeout_s=5
    )


def closes(daemon: Daemon, *data: bytes) -> bytes:
    """What the daemon answers to raw bytes before it closes the connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(daemon.socket))
        answer = b""
        try:
            for part in data:
                sock.sendall(part)
            while chunk := sock.recv(65536):
                answer += chunk
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer


def engine_of(daemon: Daemon) -> str:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return str(status["engine"])


def test_the_socket_and_its_folder_are_the_owners_alone(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("role", list(Role))
def test_only_the_token_of_the_role_is_taken(daemon: Daemon, role: Role) -> None:
    right = token(daemon, role)
    others = {daemon.engine_token, daemon.gateway_token, daemon.admin_token} - {right}
    for wrong in (*others, "", right[:-1], right + "0", secrets.token_hex(32), "\u00e9" * 64):
        with pytest.raises(InstanceUnavailableError, match="not allowed"):
            Connection.connect(daemon.socket, hello(role, wrong), timeout_s=5)
    connect(daemon, role).close()


def test_another_protocol_version_is_refused_by_name(daemon: Daemon) -> None:
    said = hello(Role.ADMIN, daemon.admin_token)
    other = Hello(PROTOCOL_VERSION + 1, said.role, said.token, said.pid, said.software)
    with pytest.raises(InstanceUnavailableError, match=f"version {PROTOCOL_VERSION + 1}"):
        Connection.connect(daemon.socket, other, timeout_s=5)


def _as_nobody(path: str, said: Hello, answers: multiprocessing.Queue[str]) -> None:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    try:
        Connection.connect(Path(path), said, timeout_s=5).close()
        answers.put("connected")
    except InstanceUnavailableError as error:
        answers.put(error.message)


def connect_as_nobody(daemon: Daemon) -> str:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    said = hello(Role.ADMIN, daemon.admin_token)
    child = context.Process(target=_as_nobody, args=(str(daemon.socket), said, answers))
    child.start()
    answer = answers.get(timeout=20)
    child.join()
    return answer


@pytest.mark.root
def test_another_user_is_refused_by_the_folder_and_by_the_daemon(daemon: Daemon) -> None:
    assert "Permission denied" in connect_as_nobody(daemon)
    opened = [daemon.folder, daemon.data, daemon.socket.parent, daemon.socket]
    modes = [path.stat().st_mode for path in opened]
    try:
        for path in opened:
            path.chmod(0o777)
        assert "not allowed to connect" in connect_as_nobody(daemon)
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(stat.S_IMODE(mode))
    connect(daemon, Role.ADMIN).close()


FOREIGN: list[tuple[Role, Message]] = [
    (Role.SCHEDULER, Load(1, 1, ())),
    (Role.SCHEDULER, Store(1, ())),
    (Role.SCHEDULER, OpenSession(1, "alice", "default")),
    (Role.SCHEDULER, AdminCall(1, "erase_tenant", {"tenant": "alice"})),
    (Role.WORKER, Match(1, "", "", 0, b"", 0)),
    (Role.WORKER, Finished(1)),
    (Role.WORKER, AdminCall(1, "status", {})),
    (Role.GATEWAY, Match(1, "", "", 0, b"", 0)),
    (Role.GATEWAY, Load(1, 1, ())),
    (Role.GATEWAY, AdminCall(1, "status", {})),
    (Role.ADMIN, OpenSession(1, "alice", "default")),
    (Role.ADMIN, Release((0,), (0,))),
    (Role.ADMIN, Refused("no")),
]


@pytest.mark.parametrize(
    ("role", "message"), FOREIGN, ids=[f"{r.value}-{type(m).__name__}" for r, m in FOREIGN]
)
def test_a_message_of_another_role_closes_the_connection(
    daemon: Daemon, role: Role, message: Message
) -> None:
    peer = connect(daemon, role)
    peer.send(message)
    answer = wait_for(peer, Refused)
    assert isinstance(answer, Refused)
    assert f"a {role.value} may not send" in answer.reason
    eventually(lambda: bool(peer.poll(0.05)) or peer.closed, "the connection closes")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        b"\xff" * 64,
        struct.pack(">I", 1) + b"\xc1",
        encode_frame(Finished(1)),
        encode_frame(Refused("you")),
    ],
    ids=["http", "oversized", "noise", "invalid", "no-hello", "an-answer"],
)
def test_bytes_that_are_no_hello_close_the_connection_and_nothing_else(
    daemon: Daemon, data: bytes
) -> None:
    with AdminClient(daemon.socket, daemon.admin_token) as bystander:
        closes(daemon, data)
        assert bystander.call("status")


def test_a_second_hello_closes_the_connection(daemon: Daemon) -> None:
    peer = connect(daemon, Role.GATEWAY)
    peer.send(hello(Role.ADMIN, daemon.admin_token))
    assert isinstance(wait_for(peer, Refused), Refused)


@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": b"short"},
        {"groups": ()},
        {"groups": (GroupLayout(0, 1, "x"),)},
        {"groups": (GroupLayout(16, -1, "x"),)},
        {"world_size": 0},
        {"world_size": 2**63},
        {"context_window": 0},
        {"rank": 1},
        {"rank": -1},
        {"block_bytes": ()},
        {"block_bytes": (0,)},
        {"block_bytes": (4096, 4096)},
        {"block_bytes": (128 * 2**20,)},
        {"block_bytes": (2**62,)},
        {"context_window": 2**62, "block_bytes": (2**40,)},
        {"groups": (GroupLayout(16, 1, "x\x00 y"),)},
        {"groups": (GroupLayout(2**40, 1, "x"),)},
    ],
    ids=repr,
)
def test_a_worker_with_an_impossible_layout_is_refused_and_binds_nobody(
    daemon: Daemon, fields: dict[str, object]
) -> None:
    with pytest.raises(InstanceUnavailableError, match="refused"):
        connect(daemon, Role.WORKER, **fields)
    with HandEngine(daemon.socket, daemon.engine_token):
        assert engine_of(daemon) == "by hand"
    eventually(lambda: engine_of(daemon) == "", "the engine is forgotten")


def test_a_second_engine_with_another_layout_is_refused_until_the_first_has_gone(
    daemon: Daemon,
) -> None:
    with (
        HandEngine(daemon.socket, daemon.engine_token),
        pytest.raises(InstanceUnavailableError, match="another model or layout"),
    ):
        connect(daemon, Role.SCHEDULER, fingerprint=b"g" * 32)
    eventually(lambda: engine_of(daemon) == "", "the first engine is forgotten")
    connect(daemon, Role.SCHEDULER, fingerprint=b"g" * 32).close()
    eventually(lambda: engine_of(daemon) == "", "the second engine is forgotten")


@pytest.mark.parametrize("role", list(Role))
def test_a_process_that_left_before_its_welcome_is_forgotten(daemon: Daemon, role: Role) -> None:
    daemon.pause()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(daemon.socket))
            sock.sendall(encode_frame(hello(role, token(daemon, role), fingerprint=b"h" * 32)))
    daemon.resume()
    eventually(lambda: engine_of(daemon) == "", "engines that left are forgotten")
    assert staging_maps(daemon) == 0
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        assert engine.region.slots > 0


def staging_maps(daemon: Daemon) -> int:
    return Path(f"/proc/{daemon.pid}/maps").read_text().count("kvrun-staging")


@pytest.mark.root
def test_running_out_of_descriptors_does_not_end_the_daemon(daemon: Daemon) -> None:
    open_now = sum(1 for _ in Path(f"/proc/{daemon.pid}/fd").iterdir())
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (open_now + 3, before[1]))
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(12)]
    try:
        for sock in crowd:
            sock.connect(str(daemon.socket))
        deadline = time.monotonic() + 10
        while sum(1 for _ in Path(f"/proc/{daemon.pid}/fd").iterdir()) < open_now + 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        for sock in crowd:
            sock.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
    assert daemon.admin("status")


@pytest.mark.parametrize(
    "message",
    [
        Load(1, 1, (BlockAt(b"h", 0, 0, 10**6, 0),)),
        Load(1, 1, (BlockAt(b"h", 0, 0, -1, 0),)),
        Load(1, 1, (BlockAt(b"h", 1, 0, 0, 0),)),
        Load(1, 1, (BlockAt(b"h", -1, 0, 0, 0),)),
        Store(1, (BlockAt(b"h", 0, 0, 10**6, 0),)),
        Store(1, (BlockAt(b"h", 7, 0, 0, 0),)),
        Release((10**6,), (0,)),
        Release((-1,), (0,)),
        Release((0, 1), (0,)),
    ],
    ids=repr,
)
def test_a_worker_that_names_what_does_not_exist_is_cut_off(
    daemon: Daemon, message: Message
) -> None:
    peer = connect(daemon, Role.WORKER)
    assert peer.staging_fd is not None
    os.close(peer.staging_fd)
    peer.send(message)
    assert isinstance(wait_for(peer, Refused), Refused)
    assert daemon.admin("status")
    eventually(lambda: engine_of(daemon) == "", "the worker is forgotten")


@pytest.mark.parametrize(
    ("operation", "arguments", "status", "says"),
    [
        ("format_disk", {}, 400, "knows no operation"),
        ("erase_session", {"tenant": "alice"}, 400, "'session'"),
        ("erase_session", {"tenant": "", "session": "x"}, 400, "'tenant'"),
        ("erase_tenant", {}, 400, "'tenant'"),
        ("request", {"request_id": "never-seen"}, 404, "never-seen"),
    ],
)
def test_an_administrative_error_says_what_is_wrong(
    daemon: Daemon, operation: str, arguments: dict[str, str], status: int, says: str
) -> None:
    with AdminClient(daemon.socket, daemon.admin_token) as client:
        with pytest.raises(KvrunError) as caught:
            client.call(operation, arguments)
        assert caught.value.status == status
        assert says in caught.value.message
        assert client.call("status")


def test_erasing_what_never_was_erases_nothing(daemon: Daemon) -> None:
    assert daemon.admin("erase_session", tenant="nobody", session="never") == []
    assert daemon.admin("erase_tenant", tenant="nobody") == []


@pytest.mark.parametrize("name", ["", "a b", "a" * 129, "\u00e9", "a\x00b"])
def test_a_session_with_an_impossible_name_is_refused_and_the_gateway_stays(
    daemon: Daemon, name: str
) -> None:
    peer = connect(daemon, Role.GATEWAY)
    for call, (tenant, session) in enumerate([(name, "default"), ("alice", name)]):
        peer.send(OpenSession(call, tenant, session))
        answer = wait_for(peer, SessionOpened)
        assert isinstance(answer, SessionOpened)
        assert answer.call == call
        assert answer.status != 200
        assert answer.salt == ""
    peer.close()
    assert grant(daemon, "alice").salt


def test_two_daemons_do_not_share_a_folder(daemon: Daemon) -> None:
    second = daemon.launch()
    assert second.wait(timeout=30) != 0
    assert "another instance daemon" in daemon.log.read_text()
    assert daemon.admin("status")


def test_the_daemon_can_dump_no_core(daemon: Daemon) -> None:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    assert status["protections"]["process"] == "not dumpable"
    assert resource.prlimit(daemon.pid, resource.RLIMIT_CORE) == (0, 0)


def test_the_status_says_whether_staging_memory_is_locked(
    daemon: Daemon, engine: HandEngine
) -> None:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    assert status["protections"]["staging"] in ("locked", "not locked")


UNLOCKABLE = """
import kvrun.instance.staging
kvrun.instance.staging.lock_when_touched = lambda address, size: "not permitted"
"""


@pytest.mark.parametrize("strict", [False, True])
def test_staging_that_cannot_be_locked_is_said_and_a_strict_deployment_refuses(
    short_folder: Path, strict: bool
) -> None:
    settings = f"[deployment]\nstrict = {str(strict).lower()}\n"
    running = Daemon(short_folder, settings=settings, prelude=UNLOCKABLE)
    running.start()
    try:
        if strict:
            with pytest.raises(InstanceUnavailableError, match="the deployment is strict"):
                connect(running, Role.WORKER)
        else:
            peer = connect(running, Role.WORKER)
            assert peer.staging_fd is not None
            os.close(peer.staging_fd)
            status = running.admin("status")
            assert isinstance(status, dict)
            assert status["protections"]["staging"] == "not locked"
            peer.close()
    finally:
        running.stop()
