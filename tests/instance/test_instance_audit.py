"""The log comes first: durable before plaintext, and without it nothing is reused."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_instance_requests import admit, blocks, hashes, stored

from kvrun.instance.protocol import Verdict
from support.byhand import HandEngine
from support.client import eventually, grant
from support.daemon import Daemon

# Writes down, inside the daemon, what was on disk when a block was opened or became findable.
WATCH = """
from kvrun.seal.envelope import BlockSealer
from kvrun.cache.handles import Reservation
def watch(kind, name):
    def records(event):
        wanted = '"event":"' + event + '"'
        return sum(p.read_text().count(wanted) for p in synced)
    original = getattr(kind, name)
    def watched(self, *a, **k):
        with open(sys.argv[1] + ".order", "a") as out:
            out.write(f"{name} opened={records('opened')} sealed={records('sealed')}\\n")
        return original(self, *a, **k)
    setattr(kind, name, watched)
synced = set()
sync = os.fdatasync
def noted(fd):
    sync(fd)
    path = Path(os.readlink(f"/proc/self/fd/{fd}"))
    if path.suffix == ".jsonl":
        synced.add(path)
os.fdatasync = noted
watch(BlockSealer, "open_into")
watch(Reservation, "commit")
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder, settings='[audit]\nmode = "require"\n', prelude=WATCH)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def order(daemon: Daemon) -> list[dict[str, str]]:
    lines = Path(f"{daemon.config}.order").read_text().splitlines()
    found = []
    for line in lines:
        what, *counts = line.split()
        found.append({"what": what, **dict(count.split("=") for count in counts)})
    return found


def test_the_record_is_on_disk_before_a_block_opens_or_can_be_found(
    daemon: Daemon, engine: HandEngine
) -> None:
    opened, sealed = daemon.count("opened"), daemon.count("sealed")
    made = stored(daemon, engine, "ordered")
    answer = admit(daemon, engine, "ordered", hashes(made))
    engine.load(answer.handle, hashes(made))
    seen = order(daemon)
    opens = [entry for entry in seen if entry["what"] == "open_into"]
    commits = [entry for entry in seen if entry["what"] == "commit"]
    assert len(opens) == len(commits) == 4
    assert all(int(entry["opened"]) > opened for entry in opens)
    assert all(int(entry["sealed"]) > sealed for entry in commits)


def test_a_log_that_cannot_be_written_stops_reuse_until_it_can(
    daemon: Daemon, engine: HandEngine
) -> None:
    made, fresh = stored(daemon, engine, "unlogged"), blocks()
    live = admit(daemon, engine, "unlogged", hashes(made))
    granted = grant(daemon, "unlogged")

    def claim() -> str:
        return daemon.claim("unlogged", granted.salt, granted.generation)

    with daemon.no_disk():
        assert engine.match(claim(), granted.salt, hashes(made)).verdict is Verdict.DENIED
        assert engine.load(live.handle, hashes(made)).plain == {}
        engine.store(live.handle, fresh)
        status = daemon.admin("status")
        assert isinstance(status, dict)
        assert status["audit_available"] is False
    eventually(
        lambda: engine.match(claim(), granted.salt, hashes(made)).verdict is Verdict.ADMITTED,
        "requests are admitted again",
    )
    again = admit(daemon, engine, "unlogged", hashes(made))
    assert engine.load(again.handle, hashes(made)).plain == dict(made)
    assert admit(daemon, engine, "unlogged", hashes(fresh)).tiers == (bytes(4),)
    assert daemon.count("gap") == 1


def test_names_tokens_and_hashes_stay_out_of_the_log(daemon: Daemon, engine: HandEngine) -> None:
    made = stored(daemon, engine, "Very-Private-Tenant", session="very-private-session")
    answer = admit(
        daemon, engine, "Very-Private-Tenant", hashes(made), session="very-private-session"
    )
    engine.load(answer.handle, hashes(made))
    salt = grant(daemon, "Very-Private-Tenant", "very-private-session").salt
    daemon.admin("flush")
    text = "".join(p.read_text() for p in (daemon.data / "audit").rglob("*.jsonl")).lower()
    assert '"opened"' in text
    for secret in ("private", salt.lower(), *(block_hash.hex() for block_hash in hashes(made))):
        assert secret not in text
