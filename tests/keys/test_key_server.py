"""A key service in a process of its own: shared keys, leases, and destruction that reaches all."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from keys_support import listed

from kvrun.claims.claim import key_id_of
from kvrun.claims.page_owner import page_owner
from kvrun.config import load_config
from kvrun.keys import DestroyedKey, KeyDestroyedError, KeyLimits, KeyUnavailableError
from kvrun.keys.daemon_state import DaemonReport, DaemonState, Pages
from kvrun.keys.errors import KeysError, RootRevokedError
from kvrun.keys.file_root import FileRoot
from kvrun.keys.greeting import hello_proof, signed_by
from kvrun.keys.key_holders import Holder, KeyHolders
from kvrun.keys.key_server import KeyServer
from kvrun.keys.listing import TenantsAsked
from kvrun.keys.opening import open_keys
from kvrun.keys.remote import RemoteKeys
from kvrun.keys.service import KeyService
from kvrun.keys.service_token import make_token, read_token
from kvrun.keys.session import SessionKeys
from kvrun.keys.signing import KeyPurpose, SigningRing
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
)

BRIEF_S = 1.5
"""A lease short enough to see its end."""
INSTANCE_KEY = Ed25519PrivateKey.from_private_bytes(b"i" * 32)
"""What every daemon here shows, unless a test says otherwise."""


def named(name: str, pid: int = 0, key: Ed25519PrivateKey = INSTANCE_KEY) -> str:
    """How a key service calls a daemon; by default one of this process."""
    return f"{name}, instance key {key_id_of(key.public_key())} (process {pid or os.getpid()})"


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

    def daemon(
        self,
        name: str = "a",
        deployment: str = "chat",
        instance_key: Ed25519PrivateKey | None = None,
    ) -> RemoteKeys:
        made = RemoteKeys(
            self.path, workspace="acme", deployment=deployment, name=name, limits=KeyLimits(),
            lease_s=self.lease_s, instance_key=instance_key or INSTANCE_KEY,
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


_NUMBERS = itertools.count(1)


def erase(
    daemon: RemoteKeys, key_ids: list[str], *, pages_within_s: float = 0.0
) -> list[DaemonState]:
    """Destroy keys, and wait until no other daemon can use them; what the others said."""
    erasure = f"erasure-{next(_NUMBERS)}"
    told = daemon.selection.destroy(key_ids, erasure=erasure).told
    names = [name for _, name in told]
    return daemon.selection.settle(erasure, names, pages_within_s=pages_within_s)


def works(keys: SessionKeys) -> bool:
    try:
        keys.block_name(b"x")
    except KeysError:
        return False
    return True


def test_a_service_that_is_closed_before_it_listens_takes_nobody(box: Box) -> None:
    server = box.server
    assert server is not None
    box.stop()
    late = threading.Thread(target=server.serve, args=(box.path,), daemon=True)
    late.start()
    late.join(timeout=20)
    assert not late.is_alive()
    assert not box._listens()


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
    assert box.service is not None
    assert [info.tenant for info in listed(b)] == ["alice"]
    for named in (False, True):
        asked = TenantsAsked(begins="", named=named)
        assert b.listing.tenants(asked) == box.service.listing.tenants(asked)


def test_what_one_destroys_the_other_cannot_use_when_it_is_done(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    taken: list[str] = []
    pages = Pages(3, 2, 0, ["one engine zeroes none"])

    def take(
        keys: Sequence[SessionKeys], owners: Sequence[bytes], tell: Callable[[Pages], None]
    ) -> None:
        taken.extend(key.salt for key in keys)
        assert list(owners) == [b"o" * 16]
        tell(pages)

    b.on_taken = take
    ours, theirs = a.acquire("alice", "one"), b.acquire("alice", "one")
    other = b.acquire("bob", "one")
    selected = a.selection.select(["alice"], None)
    assert len(selected.canaries) == 1
    done = a.selection.destroy(
        [key.key_id for key in selected.keys], erasure="e", owners=[b"o" * 16]
    )
    assert done.told == ((os.getpid(), named("b")),)
    names = [name for _, name in done.told]
    assert a.selection.settle("e", names, pages_within_s=20.0) == [
        DaemonState(names[0], DaemonReport.LET_GO, pages)
    ]
    assert (ours.destroyed, theirs.destroyed) == (True, True)
    with pytest.raises(KeyDestroyedError):
        theirs.block_name(b"x")
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
    (info,) = listed(box.service)
    assert later <= info.last_used_at <= time.time()


_STOPPED = """
import sys, time
from pathlib import Path
from kvrun.keys import KeyLimits
from kvrun.keys.errors import KeysError
from kvrun.keys.opening import open_keys
from kvrun.keys.remote import RemoteKeys
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
keys = RemoteKeys(Path(sys.argv[1]), workspace="acme", deployment="chat", name="stopped",
                  limits=KeyLimits(), lease_s=float(sys.argv[2]),
                  instance_key=Ed25519PrivateKey.from_private_bytes(b"i" * 32))
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
    name = named("stopped", other.pid)
    assert a.selection.destroy(gone, erasure="e").told == ((other.pid, name),)
    # Also where its pages may take longer: they cannot come from one that stands still.
    assert a.selection.settle("e", [name], pages_within_s=60.0) == [
        DaemonState(name, DaemonReport.TOLD)
    ]
    assert time.monotonic() - began > BRIEF_S / 4, "its lease had to end first"
    os.kill(other.pid, signal.SIGCONT)
    # And it says so when it woke.
    until(
        lambda: (
            a.selection.settle("e", [name], pages_within_s=None)
            == [DaemonState(name, DaemonReport.LET_GO, Pages())]
        )
    )
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
    first = threading.Thread(target=lambda: erase(a, gone))
    first.start()
    until(lambda: not b.selection.living(gone))
    assert DaemonState(named("stopped", other.pid), DaemonReport.TOLD) in erase(b, gone)
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
    assert erase(a, gone) == []


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
    erase(b, ids(b))
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
    erase(b, gone)
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
    erase(b, gone)
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
            erase(a, gone)
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
        threading.Thread(target=erase, args=(a if n % 2 else b, wanted[n])) for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(keys.destroyed for keys in held)


def test_a_process_that_says_hello_again_is_the_same_daemon(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    b.acquire("alice", "one")
    telling: list[Callable[[Pages], None]] = []
    b.on_taken = lambda _keys, _owners, tell: telling.append(tell)
    for _ in range(3):
        lose_connection(b)
    assert box.server is not None
    assert len(box.server._holders) == 2
    ((_, name),) = a.selection.destroy(ids(a), erasure="e").told
    until(lambda: len(telling) == 1)
    lose_connection(b)  # before it spoke of its engines
    until(lambda: len(telling) == 2)
    telling[0](Pages(9, 9, 9))  # on a connection that is no more
    telling[1](Pages(2, 1, 1))
    found = a.selection.settle("e", [name], pages_within_s=20.0)
    assert found == [DaemonState(name, DaemonReport.LET_GO, Pages(2, 1, 1))]
    telling[1](Pages(2, 2, 0))
    until(lambda: a.selection.settle("e", [name], pages_within_s=None)[0].pages == Pages(2, 2))
    assert len(box.server._holders) == 2


@pytest.mark.parametrize("has_engines", [True, False])
def test_a_daemon_whose_engines_are_not_known_yet_confirms_keys_and_no_pages(
    box: Box, has_engines: bool
) -> None:
    a, file = box.daemon("a"), box.folder / "kvrun.toml"
    file.write_text(
        f'[deployment]\nworkspace = "acme"\nname = "chat"\n'
        f'[instance]\ndata_dir = "{box.folder}/b"\n'
        f'[keys]\nmode = "service"\nsocket = "{box.path}"\n'
    )
    b = open_keys(load_config(file, {}), "b", has_engines=has_engines)
    assert isinstance(b, RemoteKeys)
    box.daemons.append(b)
    b.acquire("alice", "one")
    ((_, name),) = a.selection.destroy(ids(a), erasure="e").told
    within_s = 0.0 if has_engines else 20.0
    (found,) = a.selection.settle("e", [name], pages_within_s=within_s)
    assert found.report is DaemonReport.LET_GO
    assert found.pages == (None if has_engines else Pages())
    if has_engines:
        b.on_taken = lambda _keys, _owners, tell: tell(Pages(3, 3))
        lose_connection(b)
        (found,) = a.selection.settle("e", [name], pages_within_s=20.0)
        assert found.pages == Pages(3, 3)


def lose_connection(daemon: RemoteKeys) -> None:
    """And have it come back by itself."""
    assert daemon._link is not None
    daemon._link.close()
    until(lambda: renews(daemon))


def renews(daemon: RemoteKeys) -> bool:
    try:
        daemon._renew()
    except KeyUnavailableError:
        return False
    return True


def test_a_service_that_was_started_anew_tells_who_was_not_told(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    b.acquire("alice", "one")
    gone = ids(a)
    name = named("b")
    box.stop()
    box.serve()
    until(lambda: renews(a) and renews(b))
    assert a.selection.settle("e", [name, "c (process 1)"], pages_within_s=None) == [
        DaemonState(name, DaemonReport.UNTOLD),
        DaemonState("c (process 1)", DaemonReport.ABSENT),
    ]
    for _ in range(2):
        assert a.selection.destroy(gone, erasure="e").told == ((os.getpid(), name),)
    (state,) = a.selection.settle("e", [name], pages_within_s=20.0)
    assert state == DaemonState(name, DaemonReport.LET_GO, Pages())


def test_erasures_that_wait_hold_nobody_up(box: Box, other: subprocess.Popen[str]) -> None:
    a = box.daemon("a")
    os.kill(other.pid, signal.SIGSTOP)
    try:
        ((_, name),) = a.selection.destroy(ids(a), erasure="e").told
        found: list[list[DaemonState]] = []

        def wait() -> None:
            found.append(a.selection.settle("e", [name], pages_within_s=20.0))

        waiting = [threading.Thread(target=wait) for _ in range(40)]
        for thread in waiting:
            thread.start()
        assert box.server is not None
        until(lambda: len(box.server._holders._waiting) == 40)  # type: ignore[union-attr]
        assert renews(a)
        b = box.daemon("b")
        assert works(b.acquire("bob", "one"))
        assert erase(b, ids(b, "bob"))
    finally:
        os.kill(other.pid, signal.SIGCONT)
    for thread in waiting:
        thread.join()
    assert found == [[DaemonState(name, DaemonReport.LET_GO, Pages())]] * 40


def test_renewals_and_hellos_do_not_wait_behind_destructions(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    keys = a.acquire("alice", "one")
    begun, release = threading.Semaphore(0), threading.Event()

    def slowly(service: KeyService, key_ids: object) -> list[DestroyedKey]:
        begun.release()
        with service._lock:
            assert release.wait(20)
        return []

    monkeypatch.setattr(KeyService, "destroy_keys", slowly)
    destroying = [
        threading.Thread(target=b.selection.destroy, args=(["00" * 16],)) for _ in range(20)
    ]
    for thread in destroying:
        thread.start()
    try:
        for _ in range(16):  # every thread that destroys
            assert begun.acquire(timeout=20)
        assert renews(a)
        lose_connection(a)  # and comes back with a key
        assert renews(box.daemon("c"))
        assert works(keys)
    finally:
        release.set()
    for thread in destroying:
        thread.join()
    assert works(a.acquire("alice", "two"))


def test_keys_are_used_all_the_while_the_instance_key_is_replaced(box: Box) -> None:
    ring = SigningRing(box.folder / "signing", now=time.time)
    first = ring.load_or_create(KeyPurpose.INSTANCE).private_key
    a, b = box.daemon("a"), box.daemon("b", instance_key=first)
    stop, problems = threading.Event(), []
    b.acquire("alice", "one")

    def use() -> None:
        try:
            while not stop.is_set():
                assert works(b.acquire("alice", "one"))
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        for _ in range(2):
            newest = ring.rotate(KeyPurpose.INSTANCE).private_key
            lose_connection(b)
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert a.selection.destroy(ids(a), erasure="e").told == ((os.getpid(), named("b", key=first)),)
    b.close()
    again = box.daemon("b", instance_key=newest)  # its next start
    again.acquire("alice", "one")
    told = {name for _, name in a.selection.destroy(ids(a), erasure="f").told}
    assert named("b", key=newest) in told


# What is not a daemon of this deployment.


def test_a_daemon_of_another_deployment_is_refused(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeysError):
        box.daemon("b", deployment="search")
    until(lambda: "it is a daemon of another deployment" in caplog.text)
    assert works(box.daemon("b").acquire("alice", "one")), "nothing else was wrong"


def test_a_foreign_token_is_refused(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    make_token(box.path)
    with pytest.raises(KeysError):
        box.daemon("b")
    until(lambda: "it does not show this deployment's token" in caplog.text)


def test_another_user_is_refused(short_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    box = Box(short_folder, short_folder / "run" / "keys.sock")
    box.path.parent.mkdir(mode=0o700)
    box.serve(uid=os.geteuid() + 1)
    try:
        with pytest.raises(KeysError):
            box.daemon("b")
        until(lambda: f"a process of user {os.geteuid()} is refused" in caplog.text)
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


def hello(box: Box, challenge: object, *, signing: Ed25519PrivateKey | None = None) -> bytes:
    assert isinstance(challenge, Challenge)
    key = Ed25519PrivateKey.generate()
    instance = key.public_key().public_bytes_raw()
    unproven = Hello(VERSION, "acme", "chat", "raw", instance, b"n" * 32, b"", b"")
    proof = hello_proof(read_token(box.path), challenge, unproven)
    signature = signed_by(signing or key, challenge, unproven)
    return encode(msgspec.structs.replace(unproven, proof=proof, signature=signature))


def test_a_hello_that_was_overheard_opens_nothing_again(box: Box) -> None:
    first = Raw(box)
    said = hello(box, first.challenge)
    first.socket.sendall(said)
    assert first.frame(), "it is welcome"
    again = Raw(box)
    again.socket.sendall(said)
    assert again.is_closed()


def test_a_daemon_that_names_anothers_instance_key_is_refused(box: Box) -> None:
    raw = Raw(box)
    raw.socket.sendall(hello(box, raw.challenge, signing=Ed25519PrivateKey.generate()))
    assert raw.is_closed()


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


def test_every_daemons_engines_are_asked_for_the_pages_of_expired_keys(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b")
    asked: dict[str, list[bytes]] = {}

    def taking(name: str) -> Callable[..., None]:
        def take(
            _: Sequence[SessionKeys], owners: Sequence[bytes], tell: Callable[[Pages], None]
        ) -> None:
            asked.setdefault(name, []).extend(owners)
            tell(Pages())

        return take

    a.on_taken, b.on_taken = taking("a"), taking("b")
    salts = [a.acquire("alice", "one").salt, a.acquire("bob", "one").salt]
    assert box.service is not None
    assert box.server is not None
    box.service._now = lambda: time.time() + 8 * 86400
    box.server.expire()
    until(lambda: len(asked) == 2)
    # B never had these keys; an engine of its may have the pages all the same.
    wanted = sorted(page_owner(salt) for salt in salts)
    assert {name: sorted(owners) for name, owners in asked.items()} == {"a": wanted, "b": wanted}


def test_what_a_silent_daemon_owes_of_expired_keys_stays_in_bounds_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, told = [0.0], list[tuple[int, list[bytes], list[bytes]]]()

    def tell(number: int, key_ids: list[bytes], owners: list[bytes]) -> bool:
        told.append((number, key_ids, owners))
        return True

    holders = KeyHolders(clock=lambda: clock[0])
    holder = Holder("a daemon that stands still", 1, tell, lambda: False)
    holders.greet(holder, [], 30.0)
    clock[0] = 31.0

    def expire(number: int) -> None:
        holders.end([number.to_bytes(16, "big")], owners=[number.to_bytes(16, "big")])
        until(lambda: all(one.due is not None for one in holder.told))

    for number in range(200):
        expire(number)
    assert len(holder.told) <= 66
    owed = {key_id for one in holder.told for key_id in one.key_ids}
    assert owed == {number.to_bytes(16, "big") for number in range(200)}
    (most, *_) = sorted(told, key=lambda one: -len(one[1]))
    assert most[1] == sorted(most[2]), "whom it comes back to it is told, with their pages"
    assert len(most[1]) > 64
    monkeypatch.setattr("kvrun.keys.key_holders._MOST_OWED", 100)
    for number in range(200, 280):
        expire(number)
    assert "a daemon that stands still confirmed nothing of" in caplog.text
    assert len(holder.told) <= 66
    # An erasure is not forgotten for that.
    assert holders.end([b"e" * 16], erasure="e") == [(1, "a daemon that stands still")]
    holders.close()


def test_a_daemons_name_is_printable_and_short_where_it_is_shown(box: Box) -> None:
    a, b = box.daemon("a"), box.daemon("b\n\x1b[31m\u202e" + "x" * 500)
    keys = b.acquire("alice", "one")
    ((_, name),) = a.selection.destroy([keys.key_id], erasure="e").told
    assert name.startswith("b??[31m?xxx")
    assert name.isprintable()
    assert len(name) < 300
