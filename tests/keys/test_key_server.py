"""A key service in a process of its own: shared keys, leases, and destruction that reaches all."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvrun.keys import KeyDestroyedError, KeyLimits, KeyUnavailableError
from kvrun.keys.errors import KeysError, RootRevokedError
from kvrun.keys.file_root import FileRoot
from kvrun.keys.key_server import KeyServer
from kvrun.keys.remote import RemoteKeys
from kvrun.keys.service import KeyService
from kvrun.keys.service_token import make_token, read_token
from kvrun.keys.session import SessionKeys
from kvrun.keys.stream import Stream
from kvrun.keys.wire import (
    MAX_REQUEST_BYTES,
    VERSION,
    Acquire,
    Challenge,
    Hello,
    Lent,
    Living,
    Message,
    Names,
    Welcome,
    decode_answer,
    encode,
    hello_proof,
)

BRIEF_S = 1.5
"""A lease short enough to see its end."""


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.02)


class RefusingRoot(FileRoot):
    """A root that can take the right to use it away."""

    refuses = False

    def check(self) -> None:
        if self.refuses:
            raise RootRevokedError("the customer took the key back")
        super().check()


@dataclass
class Box:
    """A machine with a key service and the daemons of one deployment."""

    folder: Path
    path: Path
    lease_s: float = 30.0
    daemons: list[RemoteKeys] = field(default_factory=list)
    server: KeyServer | None = None
    service: KeyService | None = None
    root: RefusingRoot | None = None

    def serve(self, *, strangers_s: float = 0.0, uid: int | None = None) -> None:
        """Start the service, as a restart would."""
        self.root = RefusingRoot(self.folder / "root")
        self.service = KeyService.open(
            self.folder / "keys",
            self.root,
            workspace="acme",
            deployment="chat",
            limits=KeyLimits(),
            now=time.time,
            lease_s=self.lease_s,
        )
        self.server = KeyServer(
            self.service,
            "acme",
            "chat",
            make_token(self.path),
            lease_s=self.lease_s,
            strangers_s=strangers_s,
            uid=uid,
        )
        threading.Thread(target=self.server.serve, args=(self.path,), daemon=True).start()
        until(self._listens)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.path)) == 0

    def stop(self) -> None:
        """Stop the service; its daemons go on."""
        assert self.server is not None
        assert self.service is not None
        self.server.close()
        self.service.close()
        self.server = self.service = None

    def daemon(self, name: str = "a", deployment: str = "chat") -> RemoteKeys:
        made = RemoteKeys(
            self.path, workspace="acme", deployment=deployment, name=name, limits=KeyLimits(),
            lease_s=self.lease_s,
        )  # fmt: skip
        self.daemons.append(made)
        return made


@pytest.fixture
def lease_s() -> float:
    return 30.0


brief = pytest.mark.parametrize("lease_s", [BRIEF_S])


@pytest.fixture
def box(short_folder: Path, lease_s: float) -> Iterator[Box]:
    made = Box(short_folder, short_folder / "run" / "keys.sock", lease_s)
    made.path.parent.mkdir(mode=0o700)
    made.serve()
    yield made
    for daemon in made.daemons:
        daemon.close()
    if made.server is not None:
        made.stop()


def works(keys: SessionKeys) -> bool:
    try:
        keys.block_name(b"x")
    except KeysError:
        return False
    return True


def test_two_daemons_have_the_same_keys_of_a_session(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    ours = a.acquire("alice", "one")
    assert b.find("alice", "two") is None
    theirs = b.find("alice", "one")
    assert theirs is not None
    assert (theirs.key_id, theirs.salt, theirs.tenant_ref, theirs.session_ref) == (
        ours.key_id, ours.salt, ours.tenant_ref, ours.session_ref,
    )  # fmt: skip
    assert theirs.block_name(b"block") == ours.block_name(b"block")
    assert a.acquire("alice", "one") is ours, "without asking again"
    assert b.session_count >= 0
    assert [info.tenant for info in b.sessions()] == ["alice"]


def test_what_one_destroys_the_other_cannot_use_when_it_is_done(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    taken: list[str] = []
    b.on_taken = lambda keys: taken.extend(key.salt for key in keys)
    ours, theirs = a.acquire("alice", "one"), b.acquire("alice", "one")
    other = b.acquire("bob", "one")
    selected = a.selection.select(["alice"], None)
    assert len(selected.canaries) == 1
    done = a.selection.destroy([key.key_id for key in selected.keys])
    assert (ours.destroyed, theirs.destroyed) == (True, True)
    with pytest.raises(KeyDestroyedError):
        theirs.block_name(b"x")
    assert done.unconfirmed == ()
    assert {key.key_id for key in done.keys} == {key.key_id for key in selected.keys}
    assert a.selection.opens(selected.canaries) == []
    assert a.selection.living([key.key_id for key in selected.keys]) == []
    assert not a.selection.epoch_lives(selected.epoch)
    assert works(other)
    until(lambda: taken == [theirs.salt])
    again = b.acquire("alice", "one")
    assert again.generation > theirs.generation
    assert again.salt != theirs.salt
    assert a.acquire("alice", "one").salt == again.salt


def test_a_use_that_only_a_daemon_saw_keeps_the_key(box: Box) -> None:
    a = box.daemon("a")
    keys = a.acquire("alice", "one")
    later = time.time() - 1
    keys.touch(later)
    keys.touch(time.time() + 3600)  # nobody can have used it in an hour
    a._renew()
    assert box.service is not None
    (info,) = box.service.sessions()
    assert later <= info.last_used_at <= time.time()


_STOPPED = """
import sys, time
from pathlib import Path
from kvrun.keys import KeyLimits
from kvrun.keys.errors import KeysError
from kvrun.keys.remote import RemoteKeys
keys = RemoteKeys(Path(sys.argv[1]), workspace="acme", deployment="chat", name="stopped",
                  limits=KeyLimits(), lease_s=float(sys.argv[2]))
held = keys.acquire("alice", "one")
print("holds", flush=True)
sys.stdin.readline()
try:
    held.block_name(b"x")
    print("used", flush=True)
except KeysError as error:
    print("refused", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other(box: Box) -> Iterator[subprocess.Popen[str]]:
    """A daemon in a process of its own, which has alice's keys."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STOPPED, str(box.path), str(box.lease_s)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def ids(daemon: RemoteKeys, tenant: str = "alice") -> list[str]:
    return [key.key_id for key in daemon.selection.select([tenant], None).keys]


@brief
def test_a_daemon_that_stands_still_is_named_and_can_use_nothing_when_it_wakes(
    box: Box, other: subprocess.Popen[str]
) -> None:
    a = box.daemon("a")
    gone = ids(a)
    os.kill(other.pid, signal.SIGSTOP)
    began = time.monotonic()
    done = a.selection.destroy(gone)
    assert time.monotonic() - began > BRIEF_S / 4, "its lease had to end first"
    assert done.unconfirmed == (f"stopped (process {other.pid})",)
    os.kill(other.pid, signal.SIGCONT)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "refused\n"


@brief
def test_an_erasure_that_is_asked_for_again_waits_for_who_has_not_let_go_yet(
    box: Box, other: subprocess.Popen[str]
) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    gone = ids(a)
    os.kill(other.pid, signal.SIGSTOP)
    first = threading.Thread(target=lambda: a.selection.destroy(gone))
    first.start()
    until(lambda: not b.selection.living(gone))
    assert b.selection.destroy(gone).unconfirmed == (f"stopped (process {other.pid})",)
    first.join()
    os.kill(other.pid, signal.SIGCONT)


def test_keys_that_are_on_their_way_to_whoever_erases_them_end_there_too(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    b.acquire("alice", "one")
    gone, lent, go = ids(a), threading.Event(), threading.Event()
    real = Stream.send

    def send(stream: Stream, message: Message, keys: memoryview | None = None) -> None:
        if isinstance(message, Lent):
            lent.set()
            assert go.wait(20)
        real(stream, message, keys)

    monkeypatch.setattr(Stream, "send", send)
    found: list[SessionKeys] = []

    def take() -> None:
        with contextlib.suppress(KeysError):
            found.append(a.acquire("alice", "one"))

    taking = threading.Thread(target=take)
    taking.start()
    assert lent.wait(20)
    erasing = threading.Thread(target=lambda: a.selection.destroy(gone))
    erasing.start()
    until(lambda: not b.selection.living(gone))
    erasing.join(0.3)  # it is told that all is done only after what is on its way came
    go.set()
    erasing.join(20)
    taking.join(20)
    assert not any(works(keys) for keys in found)
    assert not box.daemons[0]._handles.key_ids()


def test_no_two_requests_have_one_number_also_over_connections(box: Box) -> None:
    a = box.daemon("a")
    numbers: list[int] = []

    def asked(call: int) -> Living:
        numbers.append(call)
        return Living(call, [])

    for _ in range(2):
        for _ in range(3):
            a.ask(asked, Names)
        assert a._link is not None
        a._link.close()
        until(lambda: reached(a))
    assert len(set(numbers)) == 6


def test_a_daemon_that_was_killed_is_not_waited_for(box: Box, other: subprocess.Popen[str]) -> None:
    a = box.daemon("a")
    gone = ids(a)
    other.kill()
    other.wait()
    assert a.selection.destroy(gone).unconfirmed == ()


@brief
def test_a_service_that_is_away_ends_leases_and_comes_back_by_itself(box: Box) -> None:
    a = box.daemon("a")
    ended: list[str] = []
    a.on_lease_end = ended.append
    keys = a.acquire("alice", "one")
    salt = keys.salt
    box.stop()
    assert works(keys), "until the lease ends"
    with pytest.raises(KeyUnavailableError):
        a.acquire("alice", "another")
    until(lambda: not works(keys))
    with pytest.raises(KeyUnavailableError):
        a.find("alice", "one")
    until(lambda: bool(ended))
    box.serve()
    until(lambda: a.leased)
    assert not works(keys), "what ended stays ended"
    assert a.acquire("alice", "one").salt == salt


def test_a_restart_within_a_lease_disturbs_nobody(box: Box) -> None:
    a = box.daemon("a")
    started_anew: list[int] = []
    a.on_new_service = lambda: started_anew.append(1)
    keys, gone = a.acquire("alice", "one"), a.acquire("bob", "one")
    box.stop()
    service = open_service_of(box)
    service.destroy_session("bob", "one")
    service.close()
    box.serve()
    until(lambda: a.find("carol", "one") is None if reached(a) else False)
    assert works(keys)
    assert gone.destroyed, "it was told at the hello"
    assert started_anew == [1], "before anything was used"
    # And what it holds is known again: it is told of its end.
    b = box.daemon("b")
    b.selection.destroy(ids(b))
    assert keys.destroyed


def reached(daemon: RemoteKeys) -> bool:
    try:
        daemon.find("carol", "one")
    except KeyUnavailableError:
        return False
    return True


def open_service_of(box: Box) -> KeyService:
    return KeyService.open(
        box.folder / "keys", FileRoot(box.folder / "root"), workspace="acme", deployment="chat",
        limits=KeyLimits(), now=time.time,
    )  # fmt: skip


def test_a_restarted_service_waits_for_daemons_that_it_does_not_know_any_more(box: Box) -> None:
    a = box.daemon("a")
    a.acquire("alice", "one")
    a.close()
    box.stop()
    box.serve(strangers_s=0.7)
    b = box.daemon("b")
    gone, began = ids(b), time.monotonic()
    b.selection.destroy(gone)
    assert time.monotonic() - began > 0.3


def test_a_restarted_service_waits_also_where_all_keys_are_destroyed(box: Box) -> None:
    a = box.daemon("a")
    a.acquire("alice", "one")
    gone = ids(a)
    a.selection.destroy(gone)
    a.close()
    box.stop()
    box.serve(strangers_s=0.7)
    b, began = box.daemon("b"), time.monotonic()
    assert b.session_count == 0
    b.selection.destroy(gone)
    assert time.monotonic() - began > 0.3


def test_a_root_that_is_taken_back_ends_every_daemons_lease_at_once(box: Box) -> None:
    a = box.daemon("a")
    ended: list[str] = []
    a.on_lease_end = ended.append
    keys = a.acquire("alice", "one")
    assert box.root is not None
    box.root.refuses = True
    assert box.service is not None
    assert box.service._keeper is not None
    box.service._keeper.renew()  # as it does three times a lease
    until(lambda: not works(keys))
    until(lambda: bool(ended))
    assert "took the key back" in ended[0]
    with pytest.raises(KeyUnavailableError):
        a.acquire("alice", "one")
    box.root.refuses = False
    box.service._keeper.renew()
    a._keeper.renew()
    until(lambda: a.leased)
    assert works(a.acquire("alice", "one"))


def test_an_acquire_beside_an_erasure_never_leaves_a_key_behind(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    stop = threading.Event()
    seen: dict[str, SessionKeys] = {}
    problems: list[str] = []

    def take() -> None:
        while not stop.is_set():
            try:
                keys = b.acquire("alice", "one")
                seen[keys.key_id] = keys
            except KeysError:
                continue

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            gone = ids(a)
            a.selection.destroy(gone)
            problems += [key for key in gone if key in seen and works(seen[key])]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert len(seen) > 3


def test_two_erasures_and_their_acknowledgements_do_not_mix(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    for number in range(6):
        a.acquire(f"t{number}", "one")
        b.acquire(f"t{number}", "one")
    held = [b.acquire(f"t{number}", "one") for number in range(6)]
    wanted = [ids(a, f"t{number}") for number in range(6)]
    threads = [
        threading.Thread(target=(a if n % 2 else b).selection.destroy, args=(wanted[n],))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(keys.destroyed for keys in held)


# What is not a daemon of this deployment.


def test_a_daemon_of_another_deployment_is_refused(box: Box) -> None:
    with pytest.raises(KeysError):
        box.daemon("b", deployment="search")


def test_a_foreign_token_is_refused(box: Box) -> None:
    make_token(box.path)
    with pytest.raises(KeysError):
        box.daemon("b")


def test_another_user_is_refused(short_folder: Path) -> None:
    box = Box(short_folder, short_folder / "run" / "keys.sock")
    box.path.parent.mkdir(mode=0o700)
    box.serve(uid=os.geteuid() + 1)
    try:
        with pytest.raises(KeysError):
            box.daemon("b")
    finally:
        box.stop()


def test_socket_and_token_are_the_owners_alone(box: Box) -> None:
    token = box.path.with_suffix(".token")
    assert [path.stat().st_mode & 0o777 for path in (box.path.parent, box.path, token)] == [
        0o700, 0o600, 0o600,
    ]  # fmt: skip
    token.chmod(0o644)
    with pytest.raises(KeysError):
        box.daemon("b")


class Raw:
    """Somebody who speaks the format by hand."""

    def __init__(self, box: Box) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(str(box.path))
        self.challenge = decode_answer(self.frame())
        assert isinstance(self.challenge, Challenge)

    def frame(self) -> bytes:
        head = self._exactly(4)
        return self._exactly(struct.unpack(">I", head)[0])

    def is_closed(self) -> bool:
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data


def hello(box: Box, challenge: object) -> bytes:
    assert isinstance(challenge, Challenge)
    unproven = Hello(VERSION, "acme", "chat", "raw", b"n" * 32, b"")
    proof = hello_proof(read_token(box.path), challenge, unproven)
    return encode(Hello(VERSION, "acme", "chat", "raw", b"n" * 32, proof))


def test_a_hello_that_was_overheard_opens_nothing_again(box: Box) -> None:
    first = Raw(box)
    said = hello(box, first.challenge)
    first.socket.sendall(said)
    assert first.frame(), "it is welcome"
    again = Raw(box)
    again.socket.sendall(said)
    assert again.is_closed()


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">I", MAX_REQUEST_BYTES + 1),
        struct.pack(">I", 0),
        b"\xff\xff\xff\xff",
        struct.pack(">I", 3) + b"abc",
        encode(Acquire(1, "alice", "one", True)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "empty", "all ones", "garbage", "without a hello", "http"],
)
def test_what_is_no_hello_ends_its_own_connection_only(box: Box, said: bytes) -> None:
    a = box.daemon("a")
    raw = Raw(box)
    raw.socket.sendall(said)
    assert raw.is_closed()
    assert works(a.acquire("alice", "one"))


def test_what_is_no_request_ends_its_own_connection_only(box: Box) -> None:
    a = box.daemon("a")
    raw = Raw(box)
    raw.socket.sendall(hello(box, raw.challenge))
    raw.frame()
    raw.socket.sendall(struct.pack(">I", 5) + b"\x93\xa3abc")
    assert raw.is_closed()
    assert works(a.acquire("alice", "one"))


def test_a_service_that_does_not_know_the_token_is_not_believed(short_folder: Path) -> None:
    path = short_folder / "run" / "keys.sock"
    path.parent.mkdir(mode=0o700)
    make_token(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(encode(Challenge(VERSION, b"n" * 32, b"s" * 16)))
                connection.recv(4096)
                connection.sendall(encode(Welcome(b"p" * 32)))
                connection.recv(1)

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        with pytest.raises(KeysError, match="no key service of ours"):
            RemoteKeys(path, workspace="acme", deployment="chat", name="a", limits=KeyLimits())
