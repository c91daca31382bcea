"""The daemon runs one residency policy: what it does not allow is not placed, served or left."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvrun.audit.record import decode_record
from kvrun.cli.main import app
from kvrun.errors import KvrunError
from kvrun.instance.client import SessionRefusedError
from kvrun.instance.refusals import Refusals
from kvrun.policy.bundle import ActivePolicy, Origin, PolicyFolder, SyncOutcome, TenantEntry
from kvrun.policy.compile import Decision
from kvrun.policy.document import Tier
from kvrun.policy.matching import Why
from kvrun.policy.simulate import RecordedPlacement, placements
from support.byhand import BLOCK_BYTES, HandEngine
from support.client import eventually, grant
from support.daemon import Daemon

POLICY = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {{name: {name}}}
match:
  classes: [{name}]
allow:
  tiers: [{tiers}]
  regions: ["{regions}"]
reason: contract
"""
ALL = "gpu, memory, disk, object"
ELSEWHERE = """\
[gateway.elsewhere]
"ap-south-1" = "https://ap.example.com"
"us-east-1" = "https://us.example.com"
"""


def policy(name: str, tiers: str = ALL, regions: str = "eu-*") -> str:
    return POLICY.format(name=name, tiers=tiers, regions=regions)


class Rig:
    """A daemon in a region whose policy is connected, and the files that it follows."""

    def __init__(
        self, folder: Path, settings: str = "", *, region: str = "eu-west-1", instance: str = ""
    ) -> None:
        self.daemon = Daemon(
            folder,
            settings=f'{instance}[residency]\nrepository = "{folder}/none"\n'
            f'region = "{region}"\n{settings}',
        )
        self.files = PolicyFolder(self.daemon.data / "residency")
        self.tenants: dict[str, str] = {}

    def activate(self, revision: str, *texts: str, confirmed_at: float | None = None) -> None:
        at = time.time() if confirmed_at is None else confirmed_at
        files = {f"policies/p{number}.yaml": text for number, text in enumerate(texts)}
        origin = Origin(revision=revision)
        self.files.activate(ActivePolicy(origin=origin, activated_at=at, files=files))
        outcome = SyncOutcome(at=at, outcome="activated", revision=revision)
        self.files.note(outcome, confirmed=True)
        self.daemon.admin("residency_reload")

    def label(self, tenant: str, tenant_class: str) -> None:
        """Say of a tenant that has a key which class it is of."""
        asked = json.dumps([tenant])
        refs = self.daemon.admin("usage_refs", tenants=asked)
        assert isinstance(refs, dict)
        self.tenants[refs[tenant]] = tenant_class
        self.files.put_tenants(
            [TenantEntry(tenant_ref=ref, tenant_class=name) for ref, name in self.tenants.items()]
        )
        self.daemon.admin("residency_reload")

    def state(self) -> dict[str, object]:
        found = self.daemon.admin("residency")
        assert isinstance(found, dict)
        return found

    def admit(self, engine: HandEngine, tenant: str, hashes: list[bytes], name: str = "") -> int:
        """Begin a request of a tenant; its handle."""
        granted = grant(self.daemon, tenant)
        claim = self.daemon.claim(tenant, granted.salt, granted.generation, request_id=name)
        return engine.match(claim, granted.salt, hashes).handle

    def found(self, engine: HandEngine, tenant: str, hashes: list[bytes]) -> bytes:
        """In which tiers a request finds these blocks."""
        granted = grant(self.daemon, tenant)
        claim = self.daemon.claim(tenant, granted.salt, granted.generation)
        answer = engine.match(claim, granted.salt, hashes)
        engine.finish(answer.handle)
        return answer.tiers[0]

    def files_on_disk(self) -> int:
        folder = self.daemon.data / "storage"
        return sum(1 for path in folder.rglob("*") if path.is_file() and "/kv/" in str(path))


@pytest.fixture
def rig() -> Iterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    made = Rig(folder, ELSEWHERE)
    made.daemon.start()
    yield made
    made.daemon.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine(rig: Rig) -> Iterator[HandEngine]:
    with HandEngine(rig.daemon.socket, rig.daemon.engine_token) as playing:
        yield playing


def blocks(seed: int, count: int = 3) -> list[tuple[bytes, bytes]]:
    return [
        (bytes([seed, number]) * 16, bytes([seed ^ number]) * BLOCK_BYTES)
        for number in range(count)
    ]


def hashes(of: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [block_hash for block_hash, _ in of]


def keep(rig: Rig, engine: HandEngine, tenant: str, made: list[tuple[bytes, bytes]]) -> None:
    """Store blocks and wait until they are on disk too."""
    handle = rig.admit(engine, tenant, hashes(made))
    engine.store(handle, made)
    engine.finish(handle)
    eventually(lambda: all(rig.found(engine, tenant, hashes(made))), "the blocks are sealed")
    rig.daemon.admin("flush")


def test_until_a_policy_is_there_nothing_is_kept_and_requests_go_on(
    rig: Rig, engine: HandEngine
) -> None:
    assert rig.state()["standing"] == "no valid policy: GPU memory only"
    made = blocks(1)
    handle = rig.admit(engine, "alice", hashes(made))
    engine.store(handle, made)
    engine.finish(handle)
    rig.daemon.admin("flush")
    assert rig.found(engine, "alice", hashes(made)) == b"\0\0\0"
    assert rig.files_on_disk() == 0


def test_a_policy_comes_into_force_without_a_restart_and_its_commit_is_on_record(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"))
    rig.label("alice", "eu")
    keep(rig, engine, "alice", blocks(1))
    assert rig.files_on_disk() == 3
    sealed = [event for event in rig.daemon.events() if event["event"] == "sealed"]
    assert {event["policy_revision"] for event in sealed} == {"a" * 40}
    (activated,) = [e for e in rig.daemon.events() if e["event"] == "policy_activated"
                    and e["policy_revision"] == "a" * 40]  # fmt: skip
    assert activated["outcome"] == "ok"


def test_a_tenant_who_may_not_be_processed_here_is_refused_before_the_engine(
    rig: Rig, engine: HandEngine
) -> None:
    for tenant in ("eve", "alice"):
        grant(rig.daemon, tenant)
    rig.activate("a" * 40, policy("us", regions="us-*"), policy("eu"))
    rig.label("eve", "us")
    rig.label("alice", "eu")
    refused = "does not allow this tenant in the region eu-west-1"
    with pytest.raises(SessionRefusedError, match=refused) as e:
        grant(rig.daemon, "eve")
    assert e.value.status == 403
    assert e.value.elsewhere == ("us-east-1",), "of the regions that are named, the one allowed"
    assert grant(rig.daemon, "alice").salt


def test_a_tier_that_is_not_allowed_stays_empty_and_the_refusal_is_on_record(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu", "gpu, memory"))
    rig.label("alice", "eu")
    keep(rig, engine, "alice", blocks(1))
    assert rig.files_on_disk() == 0

    def refused() -> list[dict[str, object]]:
        return [e for e in rig.daemon.events() if e["event"] == "denied" and e.get("tier")]

    eventually(lambda: bool(refused()), "the refusal is on record")
    assert refused()[0]["tier"] == "disk"
    assert str(refused()[0]["reason"]).startswith("residency: tier_not_allowed eu")


def test_what_is_not_sealed_because_of_a_policy_is_on_record(rig: Rig, engine: HandEngine) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu", "gpu, disk"))
    rig.label("alice", "eu")
    made = blocks(1)
    handle = rig.admit(engine, "alice", hashes(made))
    engine.store(handle, made)
    engine.finish(handle)

    def refused() -> list[dict[str, object]]:
        return [e for e in rig.daemon.events() if e["event"] == "denied" and e.get("tier")]

    eventually(lambda: bool(refused()), "the refusal is on record")
    assert [e["tier"] for e in refused()] == ["memory"]
    assert str(refused()[0]["reason"]).startswith("residency: tier_not_allowed eu")
    assert refused()[0]["policy_revision"] == "a" * 40


def test_a_request_keeps_the_revision_that_it_began_with(rig: Rig, engine: HandEngine) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"))
    rig.label("alice", "eu")
    made, late = blocks(1), blocks(2)
    handle = rig.admit(engine, "alice", hashes(made), "old")
    rig.activate("b" * 40, policy("eu", "gpu"))
    engine.store(handle, made)
    eventually(lambda: rig.daemon.reuse("old").sealed_blocks == 3, "the old request seals")
    newer = rig.admit(engine, "alice", hashes(late), "new")
    engine.store(newer, late)
    engine.finish(newer)
    engine.finish(handle)
    of_request = {
        name: {e["policy_revision"] for e in rig.daemon.events() if e.get("request_id") == name}
        for name in ("old", "new")
    }
    assert of_request == {"old": {"a" * 40}, "new": {"b" * 40}}
    assert rig.daemon.reuse("new").sealed_blocks == 0


def test_activations_while_200_requests_run_lose_none_and_mix_no_two_revisions(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    revisions = [letter * 40 for letter in "abcd"]
    rig.activate(revisions[0], policy("eu"))
    rig.label("alice", "eu")
    granted = grant(rig.daemon, "alice")
    running: dict[str, int] = {}
    for number in range(200):
        if number % 50 == 49:
            rig.activate(revisions[number // 50], policy("eu"))
        name = f"request-{number}"
        claim = rig.daemon.claim("alice", granted.salt, granted.generation, request_id=name)
        running[name] = engine.match(claim, granted.salt, hashes(blocks(number, 1))).handle
    assert all(running.values())
    for number, handle in enumerate(running.values()):
        engine.store(handle, blocks(number, 1))
        engine.finish(handle)
    eventually(lambda: rig.daemon.count("sealed") == 200, "every request's block is sealed")
    seen: dict[str, set[str]] = {}
    for event in rig.daemon.events():
        if event.get("request_id") in running:
            revision = str(event["policy_revision"])
            seen.setdefault(str(event["request_id"]), set()).add(revision)
    assert len(seen) == 200
    assert all(len(found) == 1 for found in seen.values())
    assert set().union(*seen.values()) == set(revisions)


def recorded_placements(rig: Rig) -> list[RecordedPlacement]:
    lines = (json.dumps(event, separators=(",", ":")).encode() for event in rig.daemon.events())
    return list(placements(map(decode_record, lines)))


def simulation(rig: Rig, texts: Sequence[str]) -> dict[str, Any]:
    """What ``kvrun policy simulate`` says of a folder with these policies."""
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            (Path(folder) / f"p{number}.yaml").write_text(text)
        command = ["policy", "simulate", folder, "--since", "1h", "--json"]
        said = CliRunner().invoke(app, [*command, "--config", str(rig.daemon.config)])
    assert said.exit_code == 0, said.output
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def would_be(answer: dict[str, Any], *, allowed: bool) -> set[tuple[str, Tier]]:
    """Tenants and tiers of the placements that would come out differently that way."""
    return {
        (ref, Tier[group["tier"].upper()])
        for group in answer["changes"]
        if group["now_allowed"] is allowed
        for ref in group["tenants"]
    }


def test_the_simulate_command_says_what_enforcement_then_does(rig: Rig, engine: HandEngine) -> None:
    tenants = {"alice": "eu", "bob": "other", "carol": "", "dave": "odd"}
    for tenant in tenants:
        grant(rig.daemon, tenant)
    loose = tuple(policy(name, regions="*") for name in ("eu", "other", "odd"))
    rig.activate("a" * 40, *loose)
    for tenant, name in tenants.items():
        if name:
            rig.label(tenant, name)

    def work(seed: int) -> None:
        for number, tenant in enumerate(tenants):
            made = blocks(seed + number)
            try:
                handle = rig.admit(engine, tenant, hashes(made))
            except KvrunError:
                continue
            if handle:
                engine.store(handle, made)
                engine.finish(handle)
        rig.daemon.admin("flush")

    work(1)

    def persisted() -> int:
        return sum(e["blocks"] for e in rig.daemon.events() if e["event"] == "persisted")

    eventually(lambda: persisted() == 9, "what three tenants stored is on record")
    eventually(lambda: rig.daemon.count("denied") == 1, "of Carol nothing is known")
    # Of Dave the disk may hold what never comes there: every sealed block begins in memory.
    strict = (
        policy("eu", "gpu, memory"),
        policy("other", regions="us-*"),
        policy("odd", "gpu, disk"),
    )
    recorded = recorded_placements(rig)
    made = {(p.tenant_ref, p.tier) for p in recorded if p.allowed}
    answer = simulation(rig, strict)
    assert answer["placements"] == len(recorded)
    foreseen = would_be(answer, allowed=False)
    assert answer["refused"] >= len(foreseen) > 0
    assert would_be(answer, allowed=True) == set()
    rig.activate("b" * 40, *strict)
    work(11)

    def since() -> list[RecordedPlacement]:
        return recorded_placements(rig)[len(recorded) :]

    done = {(p.tenant_ref, p.tier) for p in since() if p.allowed}
    assert done == made - foreseen
    # What was refused comes about again where the simulation of the looser one says so.
    eventually(lambda: len({p.tenant_ref for p in since() if not p.allowed}) == 4, "denied")
    answer = simulation(rig, loose)
    again = would_be(answer, allowed=True)
    assert {tier for _, tier in again} == {Tier.GPU, Tier.MEMORY, Tier.DISK}
    assert would_be(answer, allowed=False) == set()
    recorded = recorded_placements(rig)
    rig.activate("c" * 40, *loose)
    work(21)
    eventually(lambda: persisted() == 18, "what three tenants stored is on record")
    done = {(p.tenant_ref, p.tier) for p in since() if p.allowed}
    assert again <= done
    assert done == made


def test_a_stricter_revision_takes_away_what_is_misplaced(rig: Rig, engine: HandEngine) -> None:
    for tenant in ("alice", "bob"):
        grant(rig.daemon, tenant)
    rig.activate("a" * 40, policy("eu"), policy("other"))
    rig.label("alice", "eu")
    rig.label("bob", "other")
    keep(rig, engine, "alice", blocks(1))
    keep(rig, engine, "bob", blocks(2))
    assert rig.files_on_disk() == 6
    rig.activate("b" * 40, policy("eu", "gpu, memory"), policy("other"))
    eventually(lambda: rig.files_on_disk() == 3, "alice's blocks leave the disk")
    assert rig.found(engine, "alice", hashes(blocks(1))) == b"\1\1\1"
    assert rig.found(engine, "bob", hashes(blocks(2))) == b"\1\1\1"
    rig.activate("c" * 40, policy("other"))
    eventually(lambda: rig.daemon.count("evicted") >= 2, "what left for residency is on record")
    evicted = [e for e in rig.daemon.events() if e["event"] == "evicted"]
    assert {(e["tier"], e["blocks"]) for e in evicted} == {("disk", 3), ("memory", 3)}
    assert all(str(e["reason"]).startswith("residency: ") for e in evicted)
    report = rig.daemon.admin("residency_sweep")
    assert isinstance(report, dict)
    assert report["blocks"] == {"memory": 3}
    rig.activate("d" * 40, policy("eu"), policy("other"))
    eventually(lambda: rig.daemon.admin("residency_sweep")["passes"] > 0, "it was looked at")
    assert rig.daemon.admin("residency_sweep")["blocks"] == {}
    assert rig.files_on_disk() == 3, "a looser one brings nothing back"
    assert rig.found(engine, "alice", hashes(blocks(1))) == b"\0\0\0"


def test_what_a_policy_decided_is_on_record_with_revision_rule_and_reason(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"))
    rig.label("alice", "eu")
    keep(rig, engine, "alice", blocks(1))
    rig.activate("b" * 40, policy("eu", "gpu, memory"))
    eventually(lambda: rig.daemon.count("evicted") == 1, "what left the disk is on record")
    said = {
        (e["event"], e.get("reason", ""), str(e["policy_revision"])[0])
        for e in rig.daemon.events()
        if e["event"] in ("allocated", "sealed", "persisted", "evicted")
    }
    allowed, taken = "residency: allowed eu", "residency: tier_not_allowed eu"
    assert said == {
        ("allocated", allowed, "a"),
        ("sealed", allowed, "a"),
        ("persisted", allowed, "a"),
        ("evicted", taken, "b"),
    }


def test_what_a_stopped_daemon_left_is_taken_away_when_it_starts(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"))
    rig.label("alice", "eu")
    keep(rig, engine, "alice", blocks(1))
    engine.close()
    rig.daemon.kill()
    files = {"policies/p0.yaml": policy("eu", "gpu, memory")}
    rig.files.activate(
        ActivePolicy(origin=Origin(revision="b" * 40), activated_at=time.time(), files=files)
    )
    assert rig.files_on_disk() == 3
    rig.daemon.start()
    eventually(lambda: rig.files_on_disk() == 0, "the files are gone")


def test_a_revision_that_nobody_confirmed_for_too_long_leaves_gpu_memory(
    rig: Rig, engine: HandEngine
) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"), confirmed_at=time.time() - 8 * 86_400)
    rig.label("alice", "eu")
    assert rig.state()["standing"] == "too old: GPU memory only"
    made = blocks(1)
    handle = rig.admit(engine, "alice", hashes(made))
    engine.store(handle, made)
    engine.finish(handle)
    rig.daemon.admin("flush")
    assert rig.found(engine, "alice", hashes(made)) == b"\0\0\0"


def test_a_damaged_file_changes_nothing(rig: Rig, engine: HandEngine) -> None:
    grant(rig.daemon, "alice")
    rig.activate("a" * 40, policy("eu"))
    rig.label("alice", "eu")
    rig.files.active_file.write_bytes(b"{")
    rig.daemon.admin("residency_reload")
    state = rig.state()
    assert (state["revision"], state["standing"]) == ("a" * 40, "active")
    assert "is damaged" in str(state["error"])
    keep(rig, engine, "alice", blocks(1))


def test_a_rejected_revision_is_on_record_once(rig: Rig, engine: HandEngine) -> None:
    rig.activate("a" * 40, policy("eu"))
    for _ in range(3):
        rig.files.note(
            SyncOutcome(
                at=time.time(), outcome="rejected", revision="b" * 40, problems=("p.yaml:1:1: x",)
            ),
            confirmed=False,
        )
        rig.daemon.admin("residency_reload")
    (rejected,) = [e for e in rig.daemon.events() if e["event"] == "policy_rejected"]
    assert (rejected["policy_revision"], rejected["outcome"]) == ("b" * 40, "failed")
    assert rejected["reason"] == "p.yaml:1:1: x"


def test_mode_warn_does_it_all_the_same_and_puts_it_on_record() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    rig = Rig(folder, 'mode = "warn"\n')
    rig.daemon.start()
    try:
        rig.activate("a" * 40, policy("eu", "gpu", regions="us-*"))
        with HandEngine(rig.daemon.socket, rig.daemon.engine_token) as engine:
            keep(rig, engine, "alice", blocks(1))
        assert rig.files_on_disk() == 3

        def warned() -> list[dict[str, object]]:
            return [e for e in rig.daemon.events() if e["event"] == "denied"]

        eventually(lambda: bool(warned()), "what would be refused is on record")
        assert {event["outcome"] for event in warned()} == {"ok"}
    finally:
        rig.daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_no_flood_of_refusals_fills_the_log_and_what_has_no_record_is_counted() -> None:
    clock = [0.0]
    refusals = Refusals(lambda: clock[0], per_minute=5)
    no = Decision(allowed=False, why=Why.TIER, rule="eu")
    for number in range(20):
        refusals.add(f"t{number}", "s", 2, no, "a")
        refusals.add(f"t{number}", "s", 2, no, "a")
    taken, unrecorded = refusals.take()
    assert [item.count for item in taken] == [2] * 5
    assert unrecorded == 0
    refusals.add("x", "s", 2, no, "a")
    assert refusals.take() == ([], 0)
    clock[0] = 60.0
    assert refusals.take() == ([], 31)
    assert refusals.total == 41
