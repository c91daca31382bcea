"""Copies of the key slots in Storage: the newest is there, sealed, and takes the others' place."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvrun.keys.errors import KeysError, SlotFileError, WrapError
from kvrun.keys.memory_root import MemoryRoot
from kvrun.keys.slot_copies import COPIED_NAME, SlotCopies, copies, fetch_slots
from kvrun.keys.slot_copy import open_copy, seal_copy
from kvrun.storage import Storage, StorageError, open_storage

VECTORS = Path(__file__).parents[1] / "vectors"
FOLDER = "w/deployments/d/keys"


@dataclass
class GivenRoot:
    """Wraps one key to what a vector says."""

    context: bytes
    key: bytes
    wrapped: bytes

    def wrap(self, context: bytes, secret: memoryview) -> bytes:
        assert (context, secret) == (self.context, self.key)
        return self.wrapped

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        if (context, wrapped) != (self.context, self.wrapped):
            raise WrapError("another key")
        out[:] = self.key


def test_copies_of_the_independent_script_open_and_are_made_alike() -> None:
    script = VECTORS / "make_key_copy.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)
    for vector in json.loads((VECTORS / "key_copy.json").read_text()):
        scope = vector["workspace"], vector["deployment"]
        given = {name: bytes.fromhex(vector[name]) for name in vector if name not in
                 ("workspace", "deployment")}  # fmt: skip
        root: Any = GivenRoot(given["context"], given["key"], given["wrapped"])
        assert open_copy(given["copy"], root, *scope) == given["slots"]
        randomness = [given["nonce"], given["key"]]

        def random_into(out: memoryview, randomness: list[bytes] = randomness) -> None:
            out[:] = randomness.pop(0)

        assert seal_copy(given["slots"], root, *scope, random_into=random_into) == given["copy"]


def test_a_changed_a_cut_and_a_foreign_copy_open_nothing() -> None:
    root = MemoryRoot()
    slots = bytes(range(256)) * 4
    copy = seal_copy(slots, root, "w", "d")
    assert open_copy(copy, root, "w", "d") == slots
    assert slots[:32] not in copy
    for at in range(0, len(copy), 7):
        changed = bytearray(copy)
        changed[at] ^= 1
        with pytest.raises(KeysError):
            open_copy(bytes(changed), root, "w", "d")
    for size in (0, 7, 8, 30, len(copy) - 1):
        with pytest.raises(KeysError):
            open_copy(copy[:size], root, "w", "d")
    with pytest.raises(WrapError):
        open_copy(copy, root, "w", "other")
    with pytest.raises(WrapError):
        open_copy(copy, MemoryRoot(), "w", "d")
    with pytest.raises(SlotFileError):
        open_copy(b"KVKC\x02" + copy[5:], root, "w", "d")
    root.close()


@dataclass
class FakeSlots:
    """A slot file whose copies begin with its id."""

    content: bytes = b"one"
    written: int = 1
    id: bytes = b"0123456789abcdef"

    def state(self) -> tuple[int, int]:
        return self.written, len(self.content)

    def file_id(self) -> bytes:
        return self.id

    def copy(self) -> bytes:
        return self.id + self.content

    def is_own(self, copy: bytes) -> bool:
        return copy.startswith(self.id)


@dataclass
class Machine:
    """What copies the slots of one machine; ``clock`` is its time, and how long it runs."""

    folder: Path
    storage: Storage
    slots: FakeSlots = field(default_factory=FakeSlots)
    clock: float = 100.0

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.start()

    def start(self) -> None:
        def now() -> float:
            return self.clock

        file = self.folder / COPIED_NAME
        self.copies = SlotCopies(self.slots, self.storage, FOLDER, file, now=now, wall=now)

    def change(self, content: bytes) -> bool:
        """Whether the change was copied, after a while."""
        self.slots.content, self.slots.written = content, self.slots.written + 1
        self.clock += 100
        return self.copies.copy()


class Moody(Storage):
    def __init__(self, inner: Storage) -> None:
        super().__init__(inner._store, "moody")
        self._inner = inner
        self.away = self.keeps = False

    def delete(self, name: str) -> None:
        if self.keeps:
            raise StorageError("objects are kept here")
        self._inner.delete(name)

    def create(self, name: str, data: bytes | memoryview | Path) -> None:
        if self.away:
            raise StorageError("away")
        self._inner.create(name, data)


def test_a_change_is_copied_once_and_takes_the_earlier_copys_place(tmp_path: Path) -> None:
    storage = Moody(open_storage(f"file://{tmp_path}/s"))
    machine = Machine(tmp_path / "keys", storage)
    made, slots = machine.copies, machine.slots
    assert made.copy()
    assert not made.copy()
    (first,) = copies(storage, FOLDER)
    slots.content, slots.written = b"two", 2
    storage.away = True
    machine.clock += 1
    assert not made.copy()
    assert copies(storage, FOLDER) == [first]
    storage.away = False
    assert not made.copy(), "a store that failed is left alone for a moment"
    machine.clock += 2
    assert made.copy()
    (second,) = copies(storage, FOLDER)
    assert second > first
    assert storage.get(second).endswith(b"two")


def test_a_store_that_keeps_earlier_copies_gets_no_more_for_that(tmp_path: Path) -> None:
    storage = Moody(open_storage(f"file://{tmp_path}/s"))
    machine = Machine(tmp_path / "keys", storage)
    assert machine.copies.copy()
    storage.keeps = True
    assert machine.change(b"two")
    for _ in range(5):
        machine.clock += 100
        assert not machine.copies.copy()
        assert len(copies(storage, FOLDER)) == 2
    assert machine.change(b"three"), "what changed is copied all the same"
    storage.keeps = False
    machine.clock += 100
    assert not machine.copies.copy()
    assert len(copies(storage, FOLDER)) == 1


def test_the_newest_copy_sorts_last_though_the_clock_was_put_back(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/s")
    machine = Machine(tmp_path / "keys", storage, clock=1e9)
    assert machine.copies.copy()
    for before, content in ((5e8, b"two"), (4e8, b"three")):
        machine.clock = before
        machine.start()
        assert machine.change(content)
        (only,) = copies(storage, FOLDER)
        assert storage.get(only).endswith(content)


def test_an_empty_machine_never_replaces_the_copy_of_a_lost_ones_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Moody(open_storage(f"file://{tmp_path}/s"))
    lost = Machine(tmp_path / "lost", storage)
    assert lost.copies.copy()
    (copy,) = copies(storage, FOLDER)
    empty = Machine(tmp_path / "empty", storage, FakeSlots(b"new", id=b"another file id."))
    empty.clock = 1e6
    assert not empty.copies.copy()
    assert "kvrun keys fetch" in empty.copies.refused
    assert copy.rpartition("/")[2] in empty.copies.refused
    for content in (b"much", b"happens"):
        assert not empty.change(content)
    empty.start()
    assert not empty.change(b"also after a restart")
    empty.copies._not_before = 0.0
    empty.copies._look()
    assert copies(storage, FOLDER) == [copy]
    assert storage.get(copy).endswith(b"one")
    refusals = [record for record in caplog.records if "keys fetch" in record.getMessage()]
    assert [record.levelname for record in refusals] == ["ERROR"] * 2, "once a start"
    # Who decides to go on without the lost keys removes them.
    storage.delete(copy)
    assert empty.change(b"alone")
    assert not empty.copies.refused
    assert len(copies(storage, FOLDER)) == 1


def test_a_folder_from_before_the_newest_copy_does_not_replace_it(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/s")
    machine = Machine(tmp_path / "keys", storage)
    assert machine.copies.copy()
    backup = (machine.folder / COPIED_NAME).read_bytes()
    assert machine.change(b"newest")
    (newest,) = copies(storage, FOLDER)
    (machine.folder / COPIED_NAME).write_bytes(backup)
    machine.start()
    assert not machine.change(b"from the backup")
    assert machine.copies.refused
    assert copies(storage, FOLDER) == [newest]


def test_of_two_machines_the_one_that_was_replaced_stops_copying(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/s")
    old = Machine(tmp_path / "old", storage)
    assert old.copies.copy()
    new = Machine(tmp_path / "new", storage, FakeSlots(b"one"))
    (new.folder / COPIED_NAME).write_bytes((old.folder / COPIED_NAME).read_bytes())
    assert new.change(b"the new one's")
    assert not old.change(b"the old one's")
    assert old.copies.refused
    assert new.change(b"the new one's again")
    assert not new.copies.refused


def test_a_copy_that_came_to_be_without_our_knowing_is_our_own(tmp_path: Path) -> None:
    class Late(Moody):
        def create(self, name: str, data: bytes | memoryview | Path) -> None:
            self._inner.create(name, data)
            if self.away:
                raise StorageError("no answer")

    storage = Late(open_storage(f"file://{tmp_path}/s"))
    machine = Machine(tmp_path / "keys", storage)
    storage.away = True
    assert not machine.copies.copy()
    machine.start()  # as after a crash
    storage.away = False
    assert machine.change(b"two")
    (only,) = copies(storage, FOLDER)
    assert storage.get(only).endswith(b"two")


def test_a_copy_of_an_earlier_release_is_known_by_what_it_opens_to(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/s")
    machine = Machine(tmp_path / "keys", storage)
    storage.create(f"{FOLDER}/{50:020d}-{'0' * 16}.kvk", machine.slots.copy())
    assert machine.change(b"two")
    assert len(copies(storage, FOLDER)) == 1
    other = Machine(tmp_path / "others", storage, FakeSlots(id=b"another file id."))
    assert not other.copies.copy()


def test_a_slot_file_that_is_away_is_no_error_of_who_closes(tmp_path: Path) -> None:
    class Gone(FakeSlots):
        def state(self) -> tuple[int, int]:
            raise FileNotFoundError("keys.slots")

    made = Machine(tmp_path / "keys", open_storage(f"file://{tmp_path}/s"), Gone()).copies
    made.start()
    made.close()
    assert not copies(open_storage(f"file://{tmp_path}/s"), FOLDER)


def test_a_large_file_is_copied_less_often(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/s")
    machine = Machine(tmp_path / "keys", storage, FakeSlots(bytes(5_000_000)))
    assert machine.copies.copy()
    machine.slots.written = 2
    machine.clock += 4
    assert not machine.copies.copy()
    machine.clock += 2
    assert machine.copies.copy()


def test_fetching_takes_the_newest_that_opens_and_never_replaces_keys(tmp_path: Path) -> None:
    storage, root, keys = open_storage(f"file://{tmp_path}/s"), MemoryRoot(), tmp_path / "keys"
    with pytest.raises(KeysError, match="opens under this root"):
        fetch_slots(storage, FOLDER, keys, root, "w", "d")
    old, new = (bytes(16) + bytes([number]) * 16 + b"..." for number in (1, 2))
    for number, content in enumerate((old, new)):
        name = f"{FOLDER}/{number:020d}-{'0' * 16}.kvk"
        storage.create(name, seal_copy(content, root, "w", "d"))
    storage.create(f"{FOLDER}/{9:020d}-{'0' * 16}.kvk", b"not a copy of this root" * 9)
    storage.create(f"{FOLDER}/notes.txt", b"")
    fetched = fetch_slots(storage, FOLDER, keys, root, "w", "d")
    assert "/" + "0" * 19 + "1-" in fetched
    file = keys / "keys.slots"
    assert file.read_bytes() == new
    # Whoever starts with it may replace this copy, and none that comes after it.
    note = f"{new[16:32].hex()} {fetched.rpartition('/')[2]}\n"
    assert (keys / COPIED_NAME).read_text() == note
    assert (file.stat().st_mode & 0o777, keys.stat().st_mode & 0o777) == (0o600, 0o700)
    with pytest.raises(KeysError, match="already"):
        fetch_slots(storage, FOLDER, keys, root, "w", "d")
    root.close()
