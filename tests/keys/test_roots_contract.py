"""What holds for every root: memory, file, OpenBao, a PKCS#11 token, AWS KMS."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from keys_support import Clock, LossyDisk, PowerCutError, abandon, listed, open_service
from root_rigs import FileRig, KeptRig, RootRig

from kvrun.keys import (
    ClaimClass,
    EpochGoneError,
    KeyUnavailableError,
    Root,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    WrapError,
)
from kvrun.keys.keeper import Keeper, KeeperFacts
from kvrun.keys.kept_root import KeptRoot

Result = TypeVar("Result")
SECRET = memoryview(bytearray(range(32)))


def buffer() -> memoryview:
    return memoryview(bytearray(32))


def key_of(root: Root, epoch: int) -> bytes:
    out = buffer()
    root.load_epoch(epoch, out)
    return bytes(out)


def opened(root: Root, wrapped: bytes) -> bool:
    out = buffer()
    root.unwrap_into(b"context", wrapped, out)
    return out == SECRET


def test_a_wrap_opens_only_in_its_context_and_unchanged(rig: RootRig) -> None:
    root = rig.open()
    wrapped = root.wrap(b"context", SECRET)
    assert len(wrapped) <= 380
    assert opened(root, wrapped)
    for context, changed in (
        (b"contexT", wrapped),
        (b"context", wrapped[:-1] + bytes([wrapped[-1] ^ 1])),
        (b"context", wrapped[:-1]),
    ):
        out = buffer()
        with pytest.raises(WrapError):
            root.unwrap_into(context, changed, out)
        assert bytes(out) == bytes(32)
    root.close()


def test_epochs_follow_each_other_and_are_random(rig: RootRig) -> None:
    root = rig.open()
    assert root.epochs() == ()
    with pytest.raises(RootError, match="start at 1"):
        root.create_epoch(0)
    root.create_epoch(1)
    with pytest.raises(RootError, match="is 2, not 3"):
        root.create_epoch(3)
    root.create_epoch(2)
    with pytest.raises(RootError, match="destroy 1 first"):
        root.create_epoch(3)
    assert root.epochs() == (1, 2)
    assert key_of(root, 1) == key_of(root, 1) != key_of(root, 2)
    root.close()


def test_a_destroyed_epoch_is_gone_and_the_evidence_says_how(rig: RootRig) -> None:
    root = rig.open()
    wrapped = root.wrap(b"context", SECRET)
    root.create_epoch(1)
    root.create_epoch(2)
    kept = key_of(root, 2)
    evidence = root.destroy_epoch(1)
    assert (evidence.root_kind, evidence.epoch) == (root.facts.kind, 1)
    assert evidence.claim is root.facts.claim
    words = {
        "memory": ["zeroed"],
        "file": ["overwritten", "read back"],
        "openbao": ["version 2 of transit key", "trimmed", "offered again and refused"],
        "pkcs11": ["C_DestroyObject", "finds it no more", "offered again and refused"],
        "aws_kms": ["lives on", "overwritten", "read back"],
    }
    for word in words[root.facts.kind]:
        assert word in evidence.method
    assert root.epochs() == (2,)
    for call in (lambda: root.load_epoch(1, buffer()), lambda: root.destroy_epoch(1)):
        with pytest.raises(EpochGoneError, match="Epoch 1 "):
            call()
    assert key_of(root, 2) == kept
    assert opened(root, wrapped)
    root.close()


def test_a_root_survives_closing_and_a_destroyed_epoch_does_not_come_back(
    lasting: FileRig | KeptRig,
) -> None:
    root = lasting.open()
    facts, wrapped = root.facts, root.wrap(b"context", SECRET)
    root.create_epoch(1)
    root.create_epoch(2)
    root.destroy_epoch(1)
    kept = key_of(root, 2)
    root.close()
    root = lasting.open()
    assert root.facts == facts
    assert root.epochs() == (2,)
    assert key_of(root, 2) == kept
    assert opened(root, wrapped)
    root.destroy_epoch(2)  # even the only epoch can go, and the root goes on
    root.close()
    root = lasting.open()
    assert root.epochs() == ()
    assert opened(root, wrapped)
    root.create_epoch(3)
    root.close()


def test_an_old_copy_of_the_folder_brings_keys_back_only_where_it_says_do_not_back_up(
    lasting: FileRig | KeptRig, tmp_path: Path
) -> None:
    root = lasting.open()
    root.create_epoch(1)
    old = key_of(root, 1)
    marked = (lasting.folder / "DO-NOT-BACK-UP.txt").exists()
    shutil.copytree(lasting.folder, tmp_path / "copy")
    root.create_epoch(2)
    root.destroy_epoch(1)
    root.close()
    shutil.rmtree(lasting.folder)
    shutil.copytree(tmp_path / "copy", lasting.folder)
    try:
        root = lasting.open()
        came_back = key_of(root, 1) == old
        root.close()
    except RootError:
        came_back = False
    assert came_back == marked == (root.facts.kind in ("file", "aws_kms"))


def test_an_older_key_folder_under_todays_root_opens_the_living_and_nothing_destroyed(
    lasting: FileRig | KeptRig, tmp_path: Path
) -> None:
    service = open_service(tmp_path, root=lasting.open())
    names = [("alice", "one"), ("alice", "two"), ("bob", "one")]
    salts = {name: service.acquire(*name).salt for name in names}
    service.close()
    shutil.copytree(tmp_path / "keys", tmp_path / "copy")
    service = open_service(tmp_path, root=lasting.open())
    service.destroy_session("alice", "one")
    service.close()
    shutil.rmtree(tmp_path / "keys")
    shutil.copytree(tmp_path / "copy", tmp_path / "keys")
    service = open_service(tmp_path, root=lasting.open())
    assert {(info.tenant, info.session) for info in listed(service)} == set(names[1:])
    assert all(service.acquire(*name).salt == salts[name] for name in names[1:])
    service.close()


def test_many_threads_may_use_a_root_while_epochs_change(rig: RootRig) -> None:
    root = rig.open()
    root.create_epoch(1)
    stop, failed = threading.Event(), []

    def use() -> None:
        try:
            while not stop.is_set():
                root.check()
                assert opened(root, root.wrap(b"context", SECRET))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for epoch in range(2, 8):
        root.create_epoch(epoch)
        root.destroy_epoch(epoch - 1)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert root.epochs() == (7,)
    root.close()


def test_a_root_that_is_taken_away_is_noticed_and_may_be_given_back(rig: RootRig) -> None:
    root = rig.open()
    root.create_epoch(1)
    wrapped, key = root.wrap(b"context", SECRET), key_of(root, 1)
    root.check()
    if not rig.can_refuse:
        return
    rig.withdraw()
    for _ in range(2):
        with pytest.raises(RootRevokedError):
            root.check()
    if isinstance(rig, KeptRig):  # the root key itself is gone from memory
        assert bytes(root._key) == bytes(32)
        for call in (
            lambda: opened(root, wrapped),
            lambda: root.wrap(b"context", SECRET),
            lambda: key_of(root, 1),
            lambda: root.create_epoch(2),
            lambda: root.destroy_epoch(1),
        ):
            with pytest.raises(RootRevokedError):
                call()
    rig.allow()
    root.check()
    assert opened(root, wrapped)
    assert key_of(root, 1) == key
    root.close()


def test_a_root_that_is_withdrawn_does_not_open(kept: KeptRig) -> None:
    root = kept.open()
    root.create_epoch(1)
    root.close()
    before = (kept.folder / "kept.slots").read_bytes()
    kept.withdraw()
    with pytest.raises(RootRevokedError):
        kept.open()
    assert (kept.folder / "kept.slots").read_bytes() == before
    kept.allow()
    kept.open().close()


def test_a_root_out_of_reach_is_told_from_one_that_refuses(kept: KeptRig) -> None:
    root = kept.open()
    root.create_epoch(1)
    wrapped = root.wrap(b"context", SECRET)
    root.check()
    kept.cut()
    try:
        with pytest.raises(RootUnavailableError) as caught:
            root.check()
        assert caught.value.status == 503
        assert opened(root, wrapped)  # until the lease ends
        with pytest.raises(RootUnavailableError):
            root.create_epoch(2)
        assert root.epochs() == (1,)
    finally:
        kept.mend()
    root.check()
    root.create_epoch(2)
    root.close()
    kept.cut()
    try:
        with pytest.raises(RootUnavailableError):
            kept.open()
    finally:
        kept.mend()


def test_no_key_is_in_the_folder_in_the_clear(kept: KeptRig) -> None:
    root = kept.open()
    root.create_epoch(1)
    written = (kept.folder / "kept.slots").read_bytes()
    assert key_of(root, 1) not in written
    assert bytes(root._key) not in written
    root.close()


def test_undeclared_snapshots_weaken_the_claim(kept: KeptRig) -> None:
    kept.snapshot_days = None
    root = kept.open()
    if root.facts.kind == "aws_kms":
        assert "7 days" in root.facts.reason
    else:
        assert root.facts.claim is ClaimClass.LOGICAL
        assert "not declared" in root.facts.reason
    root.close()


class PowerCutKeeper:
    """Stops the machine at the ``cut_at``-th request, just before it or just after it."""

    def __init__(self, keeper: Keeper, *, cut_at: int | None, after: bool) -> None:
        self._keeper, self._cut_at, self._after = keeper, cut_at, after
        self.requests = 0

    @property
    def facts(self) -> KeeperFacts:
        return self._keeper.facts

    def greet(self) -> None:
        self._keeper.greet()

    def bind(self, root_id: bytes, *, fresh: bool) -> None:
        self._at(lambda: self._keeper.bind(root_id, fresh=fresh))

    def new_key(self, after: int) -> int:
        return self._at(lambda: self._keeper.new_key(after))

    def live(self, refs: Collection[int]) -> set[int]:
        return self._at(lambda: self._keeper.live(refs))

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        return self._at(lambda: self._keeper.encrypt(ref, context, secret))

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        self._at(lambda: self._keeper.decrypt_into(ref, context, wrapped, out))

    def destroy(self, ref: int) -> str:
        return self._at(lambda: self._keeper.destroy(ref))

    def renew(self) -> None:
        self._keeper.renew()

    def close(self) -> None:
        self._keeper.close()

    def _at(self, call: Callable[[], Result]) -> Result:
        number, self.requests = self.requests, self.requests + 1
        if number == self._cut_at and not self._after:
            raise PowerCutError("no power")
        try:
            return call()
        finally:
            if number == self._cut_at:
                raise PowerCutError("no power")


def open_cut(
    rig: KeptRig, *, cut_at: int | None, after: bool, disk: LossyDisk | None = None
) -> tuple[KeptRoot, PowerCutKeeper]:
    keeper = PowerCutKeeper(rig.keeper(), cut_at=cut_at, after=after)
    try:
        return KeptRoot(
            rig.folder, keeper, snapshot_retention_days=0, io=disk or LossyDisk()
        ), keeper
    except BaseException:
        keeper.close()
        raise


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_number", range(7))
def test_a_crash_around_each_request_leaves_a_session_whole_or_destroyed(
    kept: KeptRig, tmp_path: Path, request_number: int, after: bool
) -> None:
    service = open_service(tmp_path, root=kept.open())
    salt = service.acquire("alice", "stays").salt
    service.acquire("alice", "goes")
    service.close()
    root, keeper = open_cut(kept, cut_at=None, after=after)
    service = open_service(tmp_path, root=root)
    keeper._cut_at = keeper.requests + request_number
    done = False
    try:
        service.destroy_session("alice", "goes")
        done = True
    except KeyUnavailableError:
        pass
    abandon(service)
    for _ in range(2):
        service = open_service(tmp_path, root=kept.open())
        assert len(service._root.epochs()) == 1
        stays, goes = service.find("alice", "stays"), service.find("alice", "goes")
        assert stays is not None
        assert stays.salt == salt
        assert goes is None, "the tombstone was durable before the root was asked anything"
        service.close()
    requests = 6 if root._keeper.facts.destroys else 5
    assert done == (request_number >= requests), "one failure point for each request"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_number", range(3))
def test_a_crash_while_a_root_is_made_is_made_good(
    kept: KeptRig, tmp_path: Path, request_number: int, after: bool
) -> None:
    with pytest.raises(PowerCutError):
        open_cut(kept, cut_at=request_number, after=after)
    service = open_service(tmp_path, root=kept.open())
    salt = service.acquire("alice", "one").salt
    service.close()
    service = open_service(tmp_path, Clock(), root=kept.open())
    found = service.find("alice", "one")
    assert found is not None
    assert found.salt == salt
    service.close()


@pytest.mark.parametrize("sync", range(4))
def test_a_crash_at_each_sync_leaves_the_root_whole(kept: KeptRig, sync: int) -> None:
    disk = LossyDisk()
    root, _ = open_cut(kept, cut_at=None, after=False, disk=disk)
    wrapped = root.wrap(b"context", SECRET)
    root.create_epoch(1)
    disk.fail_at_sync = disk.syncs + sync
    try:
        root.create_epoch(2)
        root.destroy_epoch(1)
        root.create_epoch(3)
        root.destroy_epoch(2)
    except PowerCutError:
        pass
    root.close()
    disk.crash(Random(sync))
    root = kept.open()
    assert opened(root, wrapped)
    assert len(root.epochs()) in (1, 2)
    for epoch in root.epochs():
        assert any(key_of(root, epoch))
    root.close()
