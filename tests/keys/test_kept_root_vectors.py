"""A kept root's folder is the one on paper: built by an independent script it opens, and back."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvrun.keys import ClaimClass, EpochGoneError, RootError
from kvrun.keys.keeper import KeeperFacts
from kvrun.keys.kept_root import KeptRoot
from kvrun.keys.locked import LockedBuffer
from kvrun.keys.slots import SlotFile

VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_kept_root", VECTORS / "make_kept_root.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def vector() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "kept_root.json").read_text())
    return loaded


class PaperKeeper:
    """Keys written down: the script's keeper, with the package's interface."""

    facts = KeeperFacts("paper", "paper", True, ClaimClass.LOGICAL, "written down")

    def __init__(self, by_hand: ModuleType) -> None:
        self._by_hand, self._newest, self._gone = by_hand, 0, 0

    def greet(self) -> None: ...

    def bind(self, root_id: bytes, *, fresh: bool) -> None: ...

    def new_key(self, after: int) -> int:
        self._newest = max(after, self._newest) + 1
        return self._newest

    def live(self, refs: Collection[int]) -> set[int]:
        return {ref for ref in refs if ref > self._gone}

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        wrapped: bytes = self._by_hand.wrap(ref, context, bytes(secret))
        return wrapped

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        if ref <= self._gone:
            raise EpochGoneError("crossed out")
        out[:] = self._by_hand.unwrap(ref, context, wrapped)

    def destroy(self, ref: int) -> str:
        self._gone = ref
        return "crossed out"

    def renew(self) -> None: ...

    def close(self) -> None: ...


def write(vector: dict[str, Any], folder: Path) -> None:
    folder.mkdir(mode=0o700)
    content = bytearray(vector["size"])
    content[:64] = bytes.fromhex(vector["header"])
    for number, slot in enumerate(vector["slots"]):
        start = 4096 + 1024 * number
        content[start : start + 512] = bytes.fromhex(slot)
    path = folder / "kept.slots"
    path.touch(0o600)
    path.write_bytes(content)


def test_the_stored_vector_is_what_the_script_makes(
    by_hand: ModuleType, vector: dict[str, Any]
) -> None:
    assert by_hand.make() == vector


def test_a_folder_built_by_hand_opens(
    by_hand: ModuleType, vector: dict[str, Any], tmp_path: Path
) -> None:
    write(vector, tmp_path / "root")
    root = KeptRoot(tmp_path / "root", PaperKeeper(by_hand), snapshot_retention_days=0)
    assert root.facts.root_id.hex() == vector["root_id"]
    assert root.epochs() == tuple(int(epoch) for epoch in vector["epochs"])
    for epoch, key in vector["epochs"].items():
        out = memoryview(bytearray(32))
        root.load_epoch(int(epoch), out)
        assert out.hex() == key
    nonce = bytes(12)
    wrapped = nonce + AESGCM(bytes.fromhex(vector["root_key"])).encrypt(nonce, bytes(32), b"c")
    out = memoryview(bytearray(b"\1" * 32))
    root.unwrap_into(b"c", wrapped, out)
    assert bytes(out) == bytes(32)
    root.close()


def test_a_folder_that_the_package_wrote_opens_by_hand(by_hand: ModuleType, tmp_path: Path) -> None:
    root = KeptRoot(tmp_path / "root", PaperKeeper(by_hand), snapshot_retention_days=0)
    root.create_epoch(1)
    root.create_epoch(2)
    keys = {}
    for epoch in (1, 2):
        out = memoryview(bytearray(32))
        root.load_epoch(epoch, out)
        keys[str(epoch)] = out.hex()
    expected = {
        "root_id": root.facts.root_id.hex(),
        "root_key": bytes(root._key).hex(),
        "epochs": keys,
    }
    path = tmp_path / "root" / "kept.slots"
    assert by_hand.open_by_hand(path.read_bytes()) == expected
    del expected["epochs"]["1"]
    root.destroy_epoch(1)
    assert by_hand.open_by_hand(path.read_bytes()) == expected
    root.close()


def test_a_folder_of_something_else_is_refused(
    by_hand: ModuleType, vector: dict[str, Any], tmp_path: Path
) -> None:
    write(vector, tmp_path / "lost")  # the root's own record is gone, the epochs are there
    with LockedBuffer(512) as scratch:
        slots = SlotFile(tmp_path / "lost" / "kept.slots", scratch=scratch.view)
        slots.erase([0])
        slots.close()
    with pytest.raises(RootError, match="root key is damaged"):
        KeptRoot(tmp_path / "lost", PaperKeeper(by_hand))
    write(vector, tmp_path / "foreign")
    slots = SlotFile(tmp_path / "foreign" / "kept.slots")
    slots.write(slots.take_free(), 5, b"a session's keys")
    slots.close()
    with pytest.raises(RootError, match="not of a kept root"):
        KeptRoot(tmp_path / "foreign", PaperKeeper(by_hand))
