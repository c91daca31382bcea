"""An adversary with the disk, and for some attacks the signing key, of the log's writer."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit import AuditEvent, AuditLimits, AuditLog, Ed25519Signer, Event
from kvrun.audit.chain import genesis
from kvrun.audit.checkpoint import Checkpoint, sign_checkpoint
from kvrun.audit.merkle import leaf_hashes, tree_root
from kvrun.audit.verdict import Aspect, Code

LOG_ID = "kvrun.test/instances/one"
START = 1_700_000_000.0
QUIET = AuditLimits(
    group_seconds=60, checkpoint_seconds=3600, heartbeat_seconds=3600, segment_bytes=6000
)
_KEPT = TemporaryDirectory(prefix="kvrun-audit-")
INT, COM, FRE = Aspect.INTEGRITY, Aspect.COMPLETENESS, Aspect.FRESHNESS


class Clock:
    """A clock that moves by a second a reading, and as far as a test pushes it."""

    def __init__(self, start: float = START) -> None:
        self.time = start

    def __call__(self) -> float:
        self.time += 1
        return self.time


def signer(seed: int = 1, name: str = LOG_ID) -> Ed25519Signer:
    return Ed25519Signer(name, Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


def sealed(number: int) -> AuditEvent:
    return AuditEvent(
        event=Event.SEALED,
        request_id=f"req-{number}",
        workspace="w1",
        deployment="d1",
        tenant_ref="aa" * 16,
        session_ref="bb" * 16,
        tier="memory",
        blocks=3,
        bytes=300,
        tokens=48,
    )


@dataclass
class World:
    """An honest log of 60 sealings, and what was copied from it on the way."""

    folder: Path
    early: Path
    remembered: bytes
    clock: Clock = field(default_factory=Clock)

    def lines(self) -> list[bytes]:
        return [
            line
            for path in sorted(self.folder.glob("*.jsonl"))
            for line in path.read_bytes().splitlines()
        ]

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def write(self, lines: list[bytes]) -> None:
        """One segment with these lines instead of what there was; the checkpoint stays."""
        for path in self.folder.glob("segment-*"):
            path.unlink()
        content = b"".join(line + b"\n" for line in lines)
        (self.folder / f"segment-{0:016d}.jsonl").write_bytes(content)

    def sign(self, seed: int = 1) -> None:
        lines = self.lines()
        checkpoint = Checkpoint(LOG_ID, len(lines), tree_root(leaf_hashes(lines)))
        (self.folder / "checkpoint").write_bytes(sign_checkpoint(checkpoint, signer(seed)))


def honest(root: Path, log_id: str = LOG_ID) -> World:
    """A world of its own in ``root``; the log is written once and copied from then on."""
    original = _written(log_id)
    root.mkdir(exist_ok=True)
    world = World(root / "log", root / "early", original.remembered, Clock(original.clock.time))
    shutil.copytree(original.folder, world.folder)
    shutil.copytree(original.early, world.early)
    return world


@cache
def _written(log_id: str) -> World:
    root = Path(_KEPT.name) / log_id.replace("/", "-")
    folder, early = root / "log", root / "early"
    world = World(folder, early, b"")
    log = AuditLog.open(
        folder, log_id=log_id, signer=signer(name=log_id), now=world.clock, limits=QUIET
    )
    for number in range(60):
        log.append(sealed(number))
        if number % 10 == 0:
            log.commit()
        if number == 25:
            log.sign_checkpoint()
            shutil.copytree(folder, early)
        if number == 40:
            world.remembered = log.sign_checkpoint()
    log.close()
    return world


def rehash(lines: list[bytes]) -> list[bytes]:
    """The lines renumbered and chained again, as their own writer would."""
    result, prev = [], genesis(LOG_ID)
    for seq, line in enumerate(lines):
        record = json.loads(line)
        record["seq"], record["prev"] = seq, prev
        result.append(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
        prev = sha256(b"\0" + result[-1]).hexdigest()
    return result


def edit(line: bytes) -> bytes:
    return line.replace(b'"blocks":3', b'"blocks":2')


def edit_a_record(world: World) -> None:
    path = world.segments()[1]
    path.write_bytes(path.read_bytes().replace(b'"blocks":3', b'"blocks":2', 1))


def edit_a_record_keeping_no_manifest(world: World) -> None:
    lines = world.lines()
    lines[20] = edit(lines[20])
    world.write(lines)


def edit_the_last_record(world: World) -> None:
    lines = world.lines()
    lines[-1] = lines[-1].replace(b'"outcome":"ok"', b'"outcome":"denied"')
    world.write(lines)


def respell_a_record(world: World) -> None:
    lines = world.lines()
    lines[20] = lines[20].replace(b'"blocks":3,', b'"blocks": 3,')
    world.write(lines)


def delete_a_record(world: World) -> None:
    lines = world.lines()
    del lines[20]
    world.write(lines)


def reorder_records(world: World) -> None:
    lines = world.lines()
    lines[20], lines[21] = lines[21], lines[20]
    world.write(lines)


def duplicate_a_record(world: World) -> None:
    lines = world.lines()
    lines.insert(20, lines[20])
    world.write(lines)


def truncate_the_tail(world: World) -> None:
    world.write(world.lines()[:-5])


def truncate_within_a_closed_segment(world: World) -> None:
    path = world.segments()[1]
    path.write_bytes(path.read_bytes()[:-10])


def delete_a_segment(world: World) -> None:
    path = world.segments()[1]
    path.unlink()
    path.with_name(path.stem + ".manifest.json").unlink()


def delete_the_records(world: World) -> None:
    for path in world.folder.glob("segment-*"):
        path.unlink()


def delete_everything(world: World) -> None:
    for path in world.folder.iterdir():
        path.unlink()


def roll_the_disk_back(world: World) -> None:
    shutil.rmtree(world.folder)
    shutil.copytree(world.early, world.folder)


def rewrite_without_the_key(world: World) -> None:
    lines = world.lines()
    lines[20] = edit(lines[20])
    world.write(rehash(lines))


def rewrite_with_the_key(world: World) -> None:
    lines = world.lines()
    lines[20] = edit(lines[20])
    world.write(rehash(lines))
    world.sign()


def never_write_a_record(world: World) -> None:
    """With the key, and after the remembered size: as if the operation had not been recorded."""
    lines = world.lines()
    del lines[50]
    world.write(rehash(lines))
    world.sign()


def fork_before_the_remembered_size(world: World) -> None:
    lines = world.lines()
    world.write(rehash(lines[:30] + [edit(line) for line in lines[30:]]))
    world.sign()


def sign_with_another_key(world: World) -> None:
    world.write(world.lines())
    world.sign(seed=9)
    (world.folder / "signer.vkey").write_text(signer(9).key.text())


def forge_the_signature(world: World) -> None:
    path = world.folder / "checkpoint"
    note = path.read_bytes()
    path.write_bytes(note.replace(b"\n62\n", b"\n61\n"))


def forge_a_manifest(world: World) -> None:
    path = sorted(world.folder.glob("*.manifest.json"))[0]
    manifest = json.loads(path.read_bytes())
    manifest["after"]["ts"] = "2027-01-15T08:00:00.000000Z"
    path.write_text(json.dumps(manifest))


def replay_another_logs_segment(world: World) -> None:
    other = honest(world.folder.parent / "other", "kvrun.test/instances/two")
    path = world.segments()[1]
    path.write_bytes(other.segments()[1].read_bytes())


def replay_a_whole_other_log(world: World) -> None:
    other = honest(world.folder.parent / "other", "kvrun.test/instances/two")
    shutil.rmtree(world.folder)
    shutil.copytree(other.folder, world.folder)


def cut_the_tail_with_its_checkpoint(world: World) -> None:
    note = (world.early / "checkpoint").read_bytes()
    world.write(world.lines()[: int(note.split(b"\n")[1])])
    (world.folder / "checkpoint").write_bytes(note)


def change_what_came_after_the_remembered_size(world: World) -> None:
    lines = world.lines()
    lines[50] = edit(lines[50])
    world.write(rehash(lines))
    world.sign()


def set_the_clock_forward(world: World) -> None:
    world.clock.time += 86_400
    _one_more(world)


def run_a_clock_that_was_wrong_all_along(world: World) -> None:
    lines = []
    for line in world.lines():
        record = json.loads(line)
        record["ts"] = record["ts"].replace("2023-11-14T", "2023-11-12T")
        lines.append(json.dumps(record).encode())
    world.write(rehash(lines))
    world.sign()


def set_the_clock_back(world: World) -> None:
    world.clock.time -= 3600
    _one_more(world)


def never_write_for_an_hour(world: World) -> None:
    lines = world.lines()
    for at in range(30, len(lines)):
        record = json.loads(lines[at])
        record["ts"] = record["ts"].replace("T22:", "T23:")
        lines[at] = json.dumps(record).encode()
    world.write(rehash(lines))
    world.sign()


def _one_more(world: World) -> None:
    log = AuditLog.open(world.folder, log_id=LOG_ID, signer=signer(), now=world.clock, limits=QUIET)
    log.close()


@dataclass(frozen=True)
class Attack:
    """What an attack must lead to: without a second party's memory, and with it.

    ``alone`` empty: nothing in the log itself can show it.
    """

    run: Callable[[World], None]
    alone: frozenset[tuple[Aspect, Code]]
    remembered: frozenset[tuple[Aspect, Code]]


def _attack(
    run: Callable[[World], None],
    *alone: tuple[Aspect, Code],
    remembered: tuple[tuple[Aspect, Code], ...] = (),
) -> Attack:
    return Attack(run, frozenset(alone), frozenset(remembered or alone))


ATTACKS = [
    _attack(edit_a_record, (INT, Code.CHAIN_BROKEN), (INT, Code.MANIFEST_MISMATCH)),
    _attack(edit_a_record_keeping_no_manifest, (INT, Code.CHAIN_BROKEN), (INT, Code.ROOT_MISMATCH)),
    _attack(edit_the_last_record, (INT, Code.ROOT_MISMATCH)),
    _attack(respell_a_record, (INT, Code.MALFORMED)),
    _attack(delete_a_record, (INT, Code.MISSING_RECORDS), (COM, Code.MISSING_RECORDS)),
    _attack(reorder_records, (INT, Code.OUT_OF_ORDER)),
    _attack(duplicate_a_record, (INT, Code.OUT_OF_ORDER)),
    _attack(truncate_the_tail, (COM, Code.TRUNCATED)),
    _attack(truncate_within_a_closed_segment, (INT, Code.TORN), (INT, Code.MANIFEST_MISMATCH)),
    _attack(delete_a_segment, (COM, Code.MISSING_RECORDS)),
    _attack(delete_the_records, (COM, Code.LOG_MISSING)),
    _attack(delete_everything, remembered=((COM, Code.LOG_MISSING),)),
    _attack(roll_the_disk_back, remembered=((COM, Code.ROLLED_BACK),)),
    _attack(cut_the_tail_with_its_checkpoint, remembered=((COM, Code.ROLLED_BACK),)),
    _attack(rewrite_without_the_key, (INT, Code.ROOT_MISMATCH)),
    _attack(rewrite_with_the_key, remembered=((INT, Code.FORKED),)),
    _attack(fork_before_the_remembered_size, remembered=((INT, Code.FORKED),)),
    _attack(sign_with_another_key, (INT, Code.NOT_SIGNED)),
    _attack(forge_the_signature, (INT, Code.NOT_SIGNED)),
    _attack(forge_a_manifest, (INT, Code.MANIFEST_MISMATCH)),
    _attack(replay_another_logs_segment, (INT, Code.FOREIGN_LOG)),
    _attack(
        replay_a_whole_other_log, (INT, Code.NOT_SIGNED), remembered=((INT, Code.FOREIGN_LOG),)
    ),
    _attack(set_the_clock_back, (FRE, Code.CLOCK_BACKWARDS)),
    _attack(never_write_for_an_hour, (FRE, Code.SILENCE), remembered=((INT, Code.FORKED),)),
]

# Neither the log nor a remembered checkpoint shows these.
BEYOND = [
    never_write_a_record,
    change_what_came_after_the_remembered_size,
    set_the_clock_forward,
    run_a_clock_that_was_wrong_all_along,
]
