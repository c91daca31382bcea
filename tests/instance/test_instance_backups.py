"""What an erasure leaves of backups: each kind of copy is put back, and nothing erased opens."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from test_instance_erasure import about, erase, key_of
from test_instance_requests import admit, hashes, stored

from kvrun.keys.filesystem import ClaimClass
from support.byhand import HandEngine
from support.daemon import Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


class Scene:
    """Alice and Bob have blocks on disk; a copy of the folder is taken; Alice is erased."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            self.made = {tenant: stored(daemon, engine, tenant) for tenant in ("alice", "bob")}
        daemon.admin("flush")
        self.keys = {tenant: key_of(daemon, tenant) for tenant in ("alice", "bob")}
        daemon.stop()
        self.copy = daemon.folder / "copy"
        shutil.copytree(daemon.data, self.copy, ignore=shutil.ignore_patterns("run"))
        assert not (self.copy / "root").exists(), "a backup of the data folder has no root"
        shutil.copytree(daemon.root, self.copy / "root")  # an image of the machine does
        daemon.start()
        erase(daemon, "alice", reference="backup")
        daemon.stop()

    def put_back(self, *names: str) -> None:
        """Replace these parts by the copy, and start."""
        for name in names:
            old, new = self.daemon.data / name, self.copy / name
            if name == "root":
                old = self.daemon.root
            if new.is_dir():
                shutil.rmtree(old)
                shutil.copytree(new, old)
            else:
                shutil.copy2(new, old)
        self.daemon.start()

    def opens(self, tenant: str, *, with_old_claim: bool) -> dict[bytes, bytes]:
        """What opens of the tenant's blocks."""
        made = self.made[tenant]
        with HandEngine(self.daemon.socket, self.daemon.engine_token) as engine:
            if with_old_claim:
                salt, generation = self.keys[tenant]
                claim = self.daemon.claim(tenant, salt, generation)
                answer = engine.match(claim, salt, hashes(made))
            else:
                answer = admit(self.daemon, engine, tenant, hashes(made))
            if not answer.handle:
                return {}
            return engine.load(answer.handle, hashes(made)).plain


@pytest.fixture
def scene(daemon: Daemon) -> Scene:
    return Scene(daemon)


def protections(daemon: Daemon) -> dict[str, str]:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    return dict(status["protections"])


def nothing_of_alice(scene: Scene) -> None:
    assert scene.opens("alice", with_old_claim=True) == {}
    assert scene.opens("alice", with_old_claim=False) == {}
    assert key_of(scene.daemon, "alice")[0] != scene.keys["alice"][0]


def test_ciphertext_put_back_opens_for_the_others_only(scene: Scene) -> None:
    scene.put_back("storage")
    nothing_of_alice(scene)
    assert scene.opens("bob", with_old_claim=True) == dict(scene.made["bob"])


def test_everything_but_the_root_put_back_opens_the_others_and_nothing_that_was_erased(
    scene: Scene,
) -> None:
    scene.put_back("storage", "keys", "erasure", "audit", "signing")
    nothing_of_alice(scene)
    assert key_of(scene.daemon, "bob") == scene.keys["bob"]
    assert scene.opens("bob", with_old_claim=False) == dict(scene.made["bob"])


def test_the_old_slot_file_under_todays_upper_keys_opens_the_others_only(scene: Scene) -> None:
    scene.put_back("keys")
    nothing_of_alice(scene)
    assert scene.opens("bob", with_old_claim=True) == dict(scene.made["bob"])


def test_status_and_log_say_that_the_key_folder_is_an_older_copy(scene: Scene) -> None:
    scene.daemon.start()
    assert "key_folder" not in protections(scene.daemon)
    key_of(scene.daemon, "carol")
    scene.daemon.stop()
    scene.put_back("keys")
    assert protections(scene.daemon)["key_folder"].startswith("an older copy")
    scene.daemon.stop()
    lost = [event for event in scene.daemon.events() if "key folder" in str(event.get("reason"))]
    assert [event["event"] for event in lost] == ["key_destroyed"], "and once in the log"


def test_a_copy_with_its_root_is_caught_by_a_ledger_that_was_not_replaced(scene: Scene) -> None:
    scene.put_back("storage", "keys", "root")
    assert "put back from an older copy" in scene.daemon.log.read_text()
    nothing_of_alice(scene)
    assert scene.opens("bob", with_old_claim=True) == dict(scene.made["bob"])


def test_a_copy_of_the_whole_machine_opens_and_the_certificate_says_so(scene: Scene) -> None:
    """What the class "device" does not cover; it also shows that the tests above can fail."""
    (statement,) = about(scene.daemon, "backup")
    assert statement.claim_class is ClaimClass.DEVICE
    assert any("image of the machine" in text for text in statement.exclusions)
    scene.put_back("storage", "keys", "root", "erasure", "audit", "signing")
    assert scene.opens("alice", with_old_claim=True) == dict(scene.made["alice"])


@pytest.mark.root
def test_40_erased_keys_are_nowhere_on_the_raw_device() -> None:
    """ext4 on a loop device: their wrapped keys are on it before, and in no block of it after."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    image, mount = folder / "image", folder / "m"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run("mkfs.ext4", "-q", "-F", str(image))
    try:
        run("mount", "-o", "loop", str(image), str(mount))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"loop devices are not allowed here: {error.stderr.decode().strip()}")
    daemon = Daemon(mount)
    try:
        daemon.start()
        for number in range(40):
            key_of(daemon, "victim", f"s{number}")
        key_of(daemon, "survivor")
        keys = daemon.data / "keys" / "keys.slots"
        epochs = daemon.root / "root.slots"
        victims = [bytes.fromhex(str(e["key_id"])) for e in created(daemon)[:40]]
        wrapped = wraps(keys.read_bytes(), victims)
        assert len(wrapped) >= 40
        root_before = halves(epochs.read_bytes())
        run("sync")
        assert found(image, wrapped) == len(wrapped)  # the search can succeed
        assert found(image, root_before) == len(root_before)
        daemon.admin("erase_tenant", tenant="victim")
        survivor = bytes.fromhex(str(created(daemon)[40]["key_id"]))
        kept = wraps(keys.read_bytes(), [survivor])
        gone_epochs = root_before - halves(epochs.read_bytes())
        assert gone_epochs
        daemon.stop()
        run("umount", str(mount))
        assert found(image, wrapped) == 0
        assert found(image, gone_epochs) == 0
        assert found(image, kept) == len(kept) > 0
    finally:
        daemon.kill()
        subprocess.run(["umount", str(mount)], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def created(daemon: Daemon) -> list[dict[str, object]]:
    daemon.admin("flush")
    return [event for event in daemon.events() if event["event"] == "key_created"]


def halves(slots: bytes) -> set[bytes]:
    """What every half of a slot file holds, without its head that says the same in many."""
    found = {slots[at + 48 : at + 80] for at in range(4096, len(slots), 512)}
    return found - {bytes(32)}


def wraps(slots: bytes, key_ids: Collection[bytes]) -> set[bytes]:
    """The wrapped keys of these ids: 32 bytes behind each record's readable header."""
    found = set()
    for at in range(4096, len(slots), 512):
        half = slots[at : at + 512]
        for key_id in key_ids:
            if key_id in half:
                start = half.index(key_id) + 80
                found.add(half[start : start + 32])
    return found


def found(image: Path, needles: Collection[bytes]) -> int:
    content = image.read_bytes()
    return sum(needle in content for needle in needles)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
