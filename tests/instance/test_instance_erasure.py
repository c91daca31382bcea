"""Erasures of a running daemon: exactly once, whatever ends it; one session and no other."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_instance_requests import admit, blocks, hashes, stored

from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.erasure.job import Job, JobState, JobStore
from kvrun.errors import KvrunError
from kvrun.instance.client import AdminClient, SessionRefusedError
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.erasing import scrub_call
from kvrun.instance.protocol import Load, Loaded, Scrub, Scrubbed, Store, Verdict
from support.byhand import BLOCK_BYTES, BlockAt, HandEngine, wait_for
from support.client import eventually, grant
from support.daemon import Daemon
from support.memory import find_in_memory
from support.moments import AT_A_STEP

WRITTEN = (JobState.TOMBSTONED, JobState.DESTROYED, JobState.PROVEN, JobState.CERTIFIED)
STATES = [state for state in JobState if state is not JobState.REQUESTED]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    settings = '[audit]\nmode = "require"\n'
    running = Daemon(folder, settings=settings, prelude=AT_A_STEP)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


def statements(daemon: Daemon) -> list[ErasureStatement]:
    found = sorted((daemon.data / "storage").rglob("certificates/*.json"))
    return [decode_statement(payload_of(parse_certificate(path.read_bytes()))) for path in found]


def about(daemon: Daemon, reference: str) -> list[ErasureStatement]:
    return [s for s in statements(daemon) if s.request.reference == reference]


def job(daemon: Daemon, erasure_id: str) -> Job:
    found = JobStore(daemon.data / "erasure" / "jobs").load(erasure_id)
    assert found is not None
    return found


def erase(
    daemon: Daemon, tenant: str, session: str = "default", reference: str = ""
) -> dict[str, Any]:
    answer = daemon.admin(
        "erase", kind="session", tenant=tenant, session=session, reference=reference
    )
    assert isinstance(answer, dict)
    return answer


def key_of(daemon: Daemon, tenant: str, session: str = "default") -> tuple[str, int]:
    granted = grant(daemon, tenant, session)
    return granted.salt, granted.generation


@pytest.mark.parametrize(
    ("state", "when"),
    [(state, "before") for state in STATES] + [(state, "after") for state in WRITTEN],
)
def test_a_daemon_killed_at_a_step_certifies_exactly_once(
    daemon: Daemon, state: JobState, when: str
) -> None:
    reference = f"{state}-{when}"
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        made = stored(daemon, engine, reference, count=2)
    kept = key_of(daemon, f"{reference}-kept")
    before = key_of(daemon, reference)
    daemon.admin("flush")
    daemon.config.with_name("step").write_text(f"{state} {when}")
    with pytest.raises(InstanceUnavailableError):
        erase(daemon, reference, reference=reference)
    assert daemon.process is not None
    daemon.process.wait(timeout=30)
    daemon.start()

    found = about(daemon, reference)
    if state is JobState.TOMBSTONED and when == "before":
        # Nothing was written down and nothing was destroyed: it never began.
        assert found == []
        assert key_of(daemon, reference) == before
        erase(daemon, reference, reference=reference)
        found = about(daemon, reference)
    assert len(found) == 1
    statement = found[0]
    assert [key.generation for key in statement.keys] == [before[1]]
    assert {check.outcome.value for check in statement.verification} <= {"pass", "skipped"}
    done = job(daemon, statement.request.id)
    assert done.state is JobState.CERTIFIED
    assert [step.name for step in done.steps] == [str(s) for s in STATES]
    ledger = "".join(p.read_text() for p in (daemon.data / "erasure/ledger").glob("*.jsonl"))
    records = [json.loads(line) for line in ledger.splitlines()]
    mine = [r for r in records if r.get("request_id") == done.id and r["event"] == "certified"]
    assert len(mine) == 1
    assert key_of(daemon, reference)[1] > before[1]
    assert key_of(daemon, f"{reference}-kept") == kept
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        assert admit(daemon, engine, reference, hashes(made)).tiers == (bytes(2),)


def test_the_job_and_the_ledger_name_nobody(daemon: Daemon) -> None:
    grant(daemon, "Very-Private-Tenant", "very-private-session")
    erase(daemon, "Very-Private-Tenant", "very-private-session")
    for path in (daemon.data / "erasure").rglob("*"):
        if path.is_file():
            assert b"private" not in path.read_bytes().lower(), path
    for path in (daemon.data / "storage").rglob("certificates/*.json"):
        assert b"private" not in payload_of(parse_certificate(path.read_bytes())).lower()


def test_a_wider_scope_wants_the_token_of_its_plan(daemon: Daemon) -> None:
    for session in ("a", "b"):
        grant(daemon, "planned", session)
    plan = daemon.admin("erase_plan", kind="tenant", tenant="planned")
    assert isinstance(plan, dict)
    assert (plan["tenants"], plan["sessions"], plan["claim_class"]) == (1, 2, "device")
    changed = ("B" if plan["token"].startswith("A") else "A") + plan["token"][1:]
    for token in ("", "x", changed):
        with pytest.raises(KvrunError) as refused:
            daemon.admin("erase", kind="tenant", tenant="planned", confirm=token)
        assert refused.value.status == 409
    with pytest.raises(KvrunError, match="another scope"):
        daemon.admin("erase", kind="tenant", tenant="somebody", confirm=plan["token"])
    done = daemon.admin("erase", kind="tenant", tenant="planned", confirm=plan["token"])
    assert isinstance(done, dict)
    assert len(done["erased"]) == 2


def test_a_deployment_is_erased_whole_and_serves_on(daemon: Daemon, engine: HandEngine) -> None:
    made = stored(daemon, engine, "of-deployment")
    before = {tenant: key_of(daemon, tenant) for tenant in ("of-deployment", "another")}
    plan = daemon.admin("erase_plan", kind="deployment")
    assert isinstance(plan, dict)
    assert plan["tiers"][0]["blocks"] >= 4
    daemon.admin("erase", kind="deployment", confirm=plan["token"])
    for tenant, (salt, generation) in before.items():
        again = key_of(daemon, tenant)
        assert again[0] != salt
        assert again[1] > generation
    assert admit(daemon, engine, "of-deployment", hashes(made)).tiers == (bytes(4),)
    assert not list((daemon.data / "storage").rglob("*.kvs"))


def test_two_sessions_of_a_tenant_with_the_same_text(daemon: Daemon, engine: HandEngine) -> None:
    made = blocks()
    for session in ("one", "two"):
        answer = admit(daemon, engine, "twins", hashes(made), session=session)
        engine.store(answer.handle, made)
    running = admit(daemon, engine, "twins", hashes(made), session="two")
    assert engine.load(running.handle, hashes(made)[:2]).plain == dict(made[:2])
    erase(daemon, "twins", "one")
    assert engine.load(running.handle, hashes(made)).plain == dict(made)
    assert admit(daemon, engine, "twins", hashes(made), session="one").tiers == (bytes(4),)


def test_an_erasure_under_load_hits_its_session_and_nothing_is_written_back(
    daemon: Daemon,
) -> None:
    """20 tenants load and store all the time; one of them is erased in the middle."""
    tenants = [f"load-{number}" for number in range(20)]
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        made = {tenant: stored(daemon, engine, tenant, count=2) for tenant in tenants}
        handles = {t: admit(daemon, engine, t, hashes(made[t])).handle for t in tenants}
        late = {tenant: blocks(1) for tenant in tenants}
        erased = threading.Thread(target=erase, args=(daemon, "load-7", "default", "under-load"))
        # In flight when the erasure comes: a load of every tenant, then a store of every tenant.
        placed: dict[int, tuple[str, bytes]] = {}
        for number, tenant in enumerate(tenants):
            at = []
            for index, block_hash in enumerate(hashes(made[tenant])):
                taken = engine.slots.take()
                assert taken is not None
                at.append(BlockAt(block_hash, 0, index, *taken))
                placed[taken[0]] = (tenant, block_hash)
            assert engine.worker.send(Load(number, handles[tenant], tuple(at)))
            if number == 10:
                erased.start()
        loaded: dict[str, dict[bytes, bytes]] = {tenant: {} for tenant in tenants}
        left = set(placed)
        while left:
            answer = wait_for(engine.worker, Loaded)
            assert isinstance(answer, Loaded)
            for slot in answer.slots:
                tenant, block_hash = placed[slot]
                loaded[tenant][block_hash] = bytes(engine.region.slot(slot, BLOCK_BYTES))
            left -= {*answer.slots, *answer.failed}
        for tenant in tenants:
            at = []
            for index, (block_hash, plain) in enumerate(late[tenant]):
                taken = engine.slots.take()
                assert taken is not None
                engine.region.slot(taken[0], len(plain))[:] = plain
                at.append(BlockAt(block_hash, 0, index, *taken))
            assert engine.worker.send(Store(handles[tenant], tuple(at)))
        engine.release(sorted(placed))
        erased.join()
        for tenant in tenants:
            if tenant != "load-7":
                assert loaded[tenant] == dict(made[tenant])
                eventually(
                    lambda tenant=tenant: all(  # type: ignore[misc]
                        admit(daemon, engine, tenant, hashes(late[tenant])).tiers[0]
                    ),
                    "the stores of others are kept",
                )
        daemon.admin("flush")
        assert admit(daemon, engine, "load-7", hashes(made["load-7"])).tiers == (bytes(2),)
        assert admit(daemon, engine, "load-7", hashes(late["load-7"])).tiers == (bytes(1),)
        (statement,) = about(daemon, "under-load")
        gone = statement.keys[0]
        folder = f"{gone.tenant_ref}/{gone.session_ref}"
        assert not list((daemon.data / "storage").rglob(f"kv/{folder}/*"))


def test_no_plaintext_of_an_erased_session_stays_in_staging(
    daemon: Daemon, engine: HandEngine
) -> None:
    """A worker that keeps what was opened for it, as one that was stopped does."""
    made = stored(daemon, engine, "staged", count=2)
    handle = admit(daemon, engine, "staged", hashes(made)).handle
    slots = []
    for index, block_hash in enumerate(hashes(made)):
        taken = engine.slots.take()
        assert taken is not None
        slots.append(taken[0])
        block = BlockAt(block_hash, 0, index, *taken)
        assert engine.worker.send(Load(index, handle, (block,)))
        assert wait_for(engine.worker, Loaded) is not None
    held = [bytes(engine.region.slot(slot, BLOCK_BYTES)) for slot in slots]
    assert held == [plain for _, plain in made]
    erase(daemon, "staged")
    assert not any(any(engine.region.slot(slot, BLOCK_BYTES)) for slot in slots)
    # It must know, or it would take zeros for what it asked for.
    assert engine.worker.hung_up()


@pytest.mark.root
def test_the_whole_memory_of_the_daemon_holds_no_plaintext_afterwards(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "searched", count=1)
    needle = made[0][1][100:164]
    handle = admit(daemon, engine, "searched", hashes(made)).handle
    taken = engine.slots.take()
    assert taken is not None
    assert engine.worker.send(Load(1, handle, (BlockAt(made[0][0], 0, 0, *taken),)))
    assert wait_for(engine.worker, Loaded) is not None
    assert find_in_memory(daemon.pid, [needle])[needle]  # the search can succeed
    erase(daemon, "searched")
    assert find_in_memory(daemon.pid, [needle])[needle] == set()


def test_a_request_of_a_session_that_is_being_erased_goes_on_without_the_cache(
    daemon: Daemon, engine: HandEngine
) -> None:
    granted = grant(daemon, "denied")
    claim = daemon.claim("denied", granted.salt, granted.generation)
    erase(daemon, "denied")
    assert engine.match(claim, granted.salt).verdict is Verdict.DENIED


class TestEngines:
    """Engines that scrub, and engines that do not answer."""

    def test_an_engine_that_scrubs_is_asked_and_counted(self, daemon: Daemon) -> None:
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            grant(daemon, "scrubbed")
            running = threading.Thread(target=erase, args=(daemon, "scrubbed", "default", "pages"))
            running.start()
            asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert len(asked.owners) == 1
            assert engine.scheduler.send(Scrubbed(asked.call, 5, 4, 0))
            running.join()
        (statement,) = about(daemon, "pages")
        assert (statement.gpu.evicted, statement.gpu.scrubbed, statement.gpu.held) == (5, 4, 0)
        assert statement.unacknowledged == []

    def test_a_scope_opens_nothing_until_it_is_erased(self, daemon: Daemon) -> None:
        """A deployment's erasure waits here for its engine to zero pages."""
        before = grant(daemon, "waits")
        claim = daemon.claim("waits", before.salt, before.generation)
        plan = daemon.admin("erase_plan", kind="deployment")
        assert isinstance(plan, dict)
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            running = threading.Thread(
                target=daemon.admin,
                args=("erase",),
                kwargs={"kind": "deployment", "confirm": plan["token"]},
            )
            running.start()
            asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert asked.everything
            with pytest.raises(SessionRefusedError) as refused:
                grant(daemon, "waits")
            assert refused.value.status == 409
            assert engine.match(claim, before.salt).verdict is Verdict.DENIED
            assert engine.scheduler.send(Scrubbed(asked.call, 0, 0, 0))
            running.join()
        assert grant(daemon, "waits").generation > before.generation

    def test_an_engine_that_cannot_scrub_is_said_so(
        self, daemon: Daemon, engine: HandEngine
    ) -> None:
        grant(daemon, "unscrubbed")
        erase(daemon, "unscrubbed", reference="no-scrub")
        (statement,) = about(daemon, "no-scrub")
        assert any("zeroes none" in text for text in statement.exclusions)

    def test_a_silent_engine_is_named_until_it_confirms(self, daemon: Daemon) -> None:
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            grant(daemon, "silent")
            erased = erase(daemon, "silent", reference="silent")
            assert len(erased["unacknowledged"]) == 1
            (statement,) = about(daemon, "silent")
            assert "engine process" in statement.unacknowledged[0]
            asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert asked.call == scrub_call(job(daemon, erased["id"]))
            assert engine.scheduler.send(Scrubbed(asked.call, 2, 2, 0))
            eventually(lambda: job(daemon, erased["id"]).addenda == 1, "an addendum is issued")
        first, addendum = sorted(about(daemon, "silent"), key=lambda s: s.id)
        assert first.unacknowledged != []
        assert (addendum.unacknowledged, addendum.gpu.scrubbed) == ([], 2)
        assert addendum.keys == first.keys

    def test_an_engine_that_comes_back_is_asked_again(self, daemon: Daemon) -> None:
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
            grant(daemon, "returns")
            erased = erase(daemon, "returns", reference="returns")
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert asked.call == scrub_call(job(daemon, erased["id"]))
            assert engine.scheduler.send(Scrubbed(asked.call, 1, 1, 0))
            eventually(lambda: job(daemon, erased["id"]).addenda == 1, "an addendum is issued")

    def test_it_is_asked_again_after_the_daemon_came_back_too(self, daemon: Daemon) -> None:
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True):
            grant(daemon, "restarted")
            erased = erase(daemon, "restarted", reference="restarted")
        daemon.kill()
        daemon.start()
        with HandEngine(daemon.socket, daemon.engine_token, scrubs=True) as engine:
            call = scrub_call(job(daemon, erased["id"]))
            asked = wait_for(engine.scheduler, Scrub)
            while isinstance(asked, Scrub) and asked.call != call:
                asked = wait_for(engine.scheduler, Scrub)
            assert isinstance(asked, Scrub)
            assert engine.scheduler.send(Scrubbed(call, 0, 0, 0))
            eventually(lambda: job(daemon, erased["id"]).addenda == 1, "an addendum is issued")


def test_two_erasures_of_one_session_at_once_both_end(daemon: Daemon) -> None:
    grant(daemon, "both")
    results: list[object] = []

    def ask() -> None:
        with AdminClient(daemon.socket, daemon.admin_token) as client:
            arguments = {"kind": "session", "tenant": "both", "session": "default"}
            results.append(json.loads(client.call("erase", {**arguments, "reference": "both"})))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    destroyed = [key.key_id for statement in about(daemon, "both") for key in statement.keys]
    assert len(destroyed) == 1
