"""Epoch and root keys are replaced while sessions are in use; a crash in between is finished."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keys_support import LossyDisk, abandon, open_service

from kvrun.keys import FileRoot, KeyService, KeyUnavailableError, MemoryRoot, RootError
from kvrun.keys.root import Root, RotatableRoot

NAMES = [("alice", "one"), ("alice", "two"), ("bob", "one")]


def salts(service: KeyService) -> dict[tuple[str, str], str]:
    return {name: service.acquire(*name).salt for name in NAMES}


def root_key(service: KeyService) -> bytes:
    root = service._root
    assert isinstance(root, FileRoot | MemoryRoot)
    return bytes(root._key)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_new_root_key_opens_everything_and_the_old_one_is_gone(tmp_path: Path, kind: str) -> None:
    service = open_service(tmp_path, root=MemoryRoot() if kind == "memory" else None)
    before, old = salts(service), root_key(service)
    service.rotate_root()
    new = root_key(service)
    assert new != old
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert old not in content, path
            # The control: the file root's key stands in its file.
            assert (new in content) == (path.name == "root.slots" and kind == "file")
    assert salts(service) == before
    service.destroy_session("alice", "two")
    service.rotate_root()
    del before["alice", "two"]
    if kind == "memory":
        service.close()
        return
    service.close()
    service = open_service(tmp_path)
    assert {name: service.acquire(*name).salt for name in before} == before
    service.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 6), st.integers(0, 6), st.integers())
def test_a_root_rotation_cut_short_is_finished_by_the_next_start(
    tmp_path_factory: pytest.TempPathFactory, step: int, again: int, seed: int
) -> None:
    base = tmp_path_factory.mktemp("root")
    random = Random(seed)
    service = open_service(base)
    before = salts(service)
    service.close()
    disk = LossyDisk()
    service = open_service(base, io=disk)
    disk.fail_at_sync = disk.syncs + step
    with suppress(KeyUnavailableError):
        service.rotate_root()
    abandon(service)
    disk.crash(random)
    disk = LossyDisk(fail_at_sync=again)
    with suppress(OSError, KeyUnavailableError):
        abandon(open_service(base, io=disk))
    disk.crash(random)
    service = open_service(base)
    assert salts(service) == before
    root = service._root
    assert isinstance(root, RotatableRoot)
    assert not root.rotating
    service.rotate_root()
    service.destroy_session("bob", "one")
    service.close()


def test_epoch_and_root_rotate_while_threads_acquire_create_and_seal(tmp_path: Path) -> None:
    service = open_service(tmp_path)
    expected = salts(service)
    stop, problems = threading.Event(), []
    made = [0, 0]

    def use(number: int) -> None:
        try:
            while not stop.is_set():
                assert salts(service) == expected
                keys = service.acquire(f"new{number}", f"s{made[number] % 50}")
                out = bytearray(88 + 5)
                keys.sealer.seal_into(b"context", b"plain", out, salt=b"s" * 24)
                made[number] += 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    epoch = service.epoch
    for number in range(6):
        if number % 2:
            service.rotate_root()
        else:
            service.rotate_epoch()
        # Each thread gets further between two rotations.
        seen = list(made)
        while not problems and any(now == then for now, then in zip(made, seen, strict=True)):
            stop.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert service.epoch == epoch + 3
    service.close()
    service = open_service(tmp_path)
    assert salts(service) == expected
    service.close()


class _KeptElsewhere:
    """A root that cannot replace its root key by itself."""

    def __init__(self, root: FileRoot) -> None:
        self._root = root

    def __getattr__(self, name: str) -> object:
        if name in ("rotating", "begin_rotation", "finish_rotation"):
            raise AttributeError(name)
        return getattr(self._root, name)


def test_a_root_kept_elsewhere_says_where_its_key_is_rotated(tmp_path: Path) -> None:
    root: Root = _KeptElsewhere(FileRoot(tmp_path / "root"))  # type: ignore[assignment]
    service = open_service(tmp_path, root=root)
    with pytest.raises(RootError, match="where it is kept"):
        service.rotate_root()
    service.acquire("alice", "one")
    service.close()
