"""End users of a deployment: listed by reference, told by name only on record, kept nowhere."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy_rig import DAEMON, WORKSPACE, Rig, Users, spec

from kvrun.config.storage import StorageSection
from kvrun.deployments.cache_view import cache_view
from kvrun.deployments.errors import TenantImportError
from kvrun.deployments.forgetting import EVERY_S
from kvrun.deployments.model import Deployment
from kvrun.deployments.tenant_import import import_tenants, parse_tenants
from kvrun.deployments.views import DeploymentViews
from kvrun.errors import KvrunError
from kvrun.instance.auditing import LookUpError
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.usage import MAX_ROWS
from kvrun.launch.admin import ask_daemon
from kvrun.launch.erasing import erase, plan_erasure

ALICE, BOB = "alice-7f3c@example.com", "bob-51d0@example.com"
LABEL = "gold-customers-since-2019"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Rig, Deployment]]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    rig = Rig(folder, DAEMON)
    running = rig.running(spec(labels={"region": "eu-west-1"}))
    users = Users(rig, running)
    with users.engine() as engine:
        users.store(engine, ALICE)
        users.store(engine, BOB, blocks=2)
    users.open(ALICE, "second")
    ask_daemon(users.config, "flush")
    yield rig, running
    rig.close()
    shutil.rmtree(folder, ignore_errors=True)


def everything_written(rig: Rig) -> bytes:
    """The database, its journal and a backup of it, as bytes."""
    backup = rig.home / "backup.sqlite"
    backup.unlink(missing_ok=True)
    with sqlite3.connect(rig.home / "control.sqlite") as source:
        source.execute(f"VACUUM INTO '{backup}'")
    files = [path for path in rig.home.glob("*.sqlite*") if path.is_file()]
    assert {"control.sqlite", "backup.sqlite", "control.sqlite-wal"} <= {p.name for p in files}
    return b"".join(path.read_bytes() for path in files)


def test_users_are_listed_by_reference_with_what_they_hold(served: tuple[Rig, Deployment]) -> None:
    rig, running = served
    views = DeploymentViews(rig.deployments)
    page = views.users(running.id)
    assert (page.total, page.pages, page.unavailable) == (2, 1, "")
    alice = next(row for row in page.rows if row.sessions == 2)
    assert alice.tenant is None
    assert alice.blocks >= 4
    assert alice.size_bytes > 4 * 4096
    assert alice.expires_at == pytest.approx(alice.last_used_at + 7 * 86400, abs=5)
    one = views.users(running.id, per_page=1)
    two = views.users(running.id, page=2, per_page=1)
    assert (one.pages, len(one.rows), len(two.rows)) == (2, 1, 1)
    assert {one.rows[0].tenant_ref, two.rows[0].tenant_ref} == {r.tenant_ref for r in page.rows}
    assert [row.tenant_ref for row in views.users(running.id, ALICE).rows] == [alice.tenant_ref]
    found = views.users(running.id, alice.tenant_ref[:6].upper())
    assert [row.tenant_ref for row in found.rows] == [alice.tenant_ref]
    assert views.users(running.id, "nobody").rows == ()
    sessions = views.sessions(running.id, alice.tenant_ref)
    assert len(sessions) == 2
    assert {item.session for item in sessions} == {None}
    assert sum(item.disk_blocks for item in sessions) == 4


def test_an_id_is_told_only_for_a_reason_that_is_on_record_first(
    served: tuple[Rig, Deployment],
) -> None:
    rig, running = served
    views, config = DeploymentViews(rig.deployments), rig.deployments.config_of(running.id)

    def looked_up() -> int:
        text = b"".join(path.read_bytes() for path in config.layout.audit.glob("*.jsonl"))
        return text.count(b'"event":"whois"')

    before = looked_up()
    views.users(running.id, ALICE)
    views.where_is(WORKSPACE, ALICE)
    assert looked_up() == before
    told = views.users(running.id, reveal="ticket 4711")
    assert {row.tenant for row in told.rows} == {ALICE, BOB}
    assert looked_up() == before + 2
    assert {row.session for row in views.sessions(running.id, ALICE, reveal="ticket 4711")} == {
        "default",
        "second",
    }
    with pytest.raises(KvrunError) as refused:
        views.users(running.id, reveal="a\nb")
    assert refused.value.status == LookUpError.status


def test_where_a_person_is_names_every_deployment_tier_and_region(
    served: tuple[Rig, Deployment],
) -> None:
    rig, running = served
    other = rig.deployments.create(WORKSPACE, spec("other"))
    rig.deployments.create("w-2", spec("foreign"))
    places = {place.deployment.id: place for place in rig_views(rig).where_is(WORKSPACE, ALICE)}
    assert set(places) == {running.id, other.id}
    here = places[running.id]
    assert (here.found, here.sessions, here.region) == (True, 2, "eu-west-1")
    assert here.tiers["disk"] > 4 * 4096
    assert here.expires_at is not None
    assert not places[other.id].found
    assert "never ran" in places[other.id].unknown
    assert not any(place.found for place in rig_views(rig).where_is(WORKSPACE, "nobody"))
    rig.deployments.delete(other.id, "a test")


def test_where_a_person_is_counts_all_of_more_sessions_than_one_answer_names(real: Rig) -> None:
    running = real.running()
    users = Users(real, running)
    with users.engine() as engine:
        users.store(engine, ALICE)
    ask_daemon(users.config, "flush")
    (before,) = rig_views(real).where_is(WORKSPACE, ALICE)
    assert before.tiers["disk"] > 4 * 4096
    asyncio.run(open_sessions(users, [f"later-{number}" for number in range(MAX_ROWS)]))
    (place,) = rig_views(real).where_is(WORKSPACE, ALICE)
    assert place.sessions == MAX_ROWS + 1
    assert place.tiers == before.tiers, "its blocks are those of the session used longest ago"


async def open_sessions(users: Users, names: list[str]) -> None:
    """Sessions of ALICE, over one connection."""
    client = AsyncInstanceClient(
        users.socket,
        users.gateway_token,
        on_invalidated=lambda tenant, session: None,
        on_lost=lambda: None,
    )
    await client.start()
    try:
        await asyncio.gather(*(client.open_session(ALICE, name) for name in names))
    finally:
        await client.close()


def test_what_was_said_of_a_tenant_is_forgotten_once_it_is_gone(real: Rig) -> None:
    running = real.running()
    users, labels = Users(real, running), real.deployments.tenants
    for tenant in (ALICE, BOB):
        users.open(tenant)
    import_tenants(real.deployments, running.id, f"tenant,class\n{ALICE},gold\n{BOB},gold\n")
    rows = rig_views(real).users(running.id).rows
    (bob,) = rig_views(real).users(running.id, BOB).rows
    asked = {"kind": "tenant", "tenant": ALICE}
    plan = plan_erasure(users.config, asked, offline=False)
    erase(users.config, {**asked, "confirm": plan.token, "requester": "cli"}, offline=False)
    assert len(labels.of(running.id, [row.tenant_ref for row in rows])) == 2
    for _ in range(3):
        real.deployments.forget_gone()
    assert len(labels.refs(running.id, limit=9)) == 2, "one look is not enough"
    real.clock.ahead_s += EVERY_S
    real.deployments.forget_gone()
    assert labels.refs(running.id, limit=9) == [bob.tenant_ref]
    real.deployments.stop(running.id, wait_s=30)
    for _ in range(3):
        real.clock.ahead_s += EVERY_S
        real.deployments.forget_gone()
    assert labels.refs(running.id, limit=9) == [bob.tenant_ref], "nobody could be asked"


def rig_views(rig: Rig) -> DeploymentViews:
    return DeploymentViews(rig.deployments)


def test_the_cache_tab_says_what_each_tier_holds_and_why_one_is_off(
    served: tuple[Rig, Deployment],
) -> None:
    rig, running = served
    view = rig_views(rig).cache(running.id)
    engine, memory, disk = view.tiers
    assert engine.name in ("GPU memory", "Engine memory")
    assert "AES-256-GCM" in memory.protection
    assert memory.blocks
    assert memory.blocks >= 6
    assert disk.size_bytes
    assert disk.off == ""
    assert "scratch space for decryption" in view.context_why
    config = rig.deployments.config_of(running.id)
    stateless = config.model_copy(
        update={"deployment": config.deployment.model_copy(update={"stateless": True})}
    )
    off = cache_view(stateless, None, cpu=True)
    assert "stateless" in off.tiers[2].off
    assert off.tiers[0].name == "Engine memory"
    on_gpu = cache_view(config, None, cpu=False).tiers[0]
    assert (on_gpu.name, on_gpu.holds) == ("GPU memory", "The working set, on the accelerator")
    assert "reserved for this deployment alone; pages are zeroed" in on_gpu.protection
    shared = cache_view(config, None, cpu=False, shared=True).tiers[0]
    assert "other processes use too" in shared.protection
    assert "alone" not in shared.protection
    slots = config.engine.model_copy(update={"kind": "llama.cpp", "kv_cache_bytes": 2**20})
    row = cache_view(config.model_copy(update={"engine": slots}), None, cpu=None).tiers[0]
    assert (row.name, row.capacity_bytes) == ("Engine memory", None)
    assert "slots are zeroed" in row.protection
    in_bucket = config.model_copy(update={"storage": StorageSection(url="s3://bucket/below")})
    row = cache_view(in_bucket, None, cpu=True).tiers[3]
    assert (row.name, row.off) == ("Storage", "")
    no_blocks = in_bucket.instance.model_copy(update={"object_tier": "off"})
    row = cache_view(in_bucket.model_copy(update={"instance": no_blocks}), None, cpu=True).tiers[3]
    assert "object_tier" in row.off
    overview = rig_views(rig).overview(running.id)
    assert overview.requests == 2
    assert overview.reuse is not None
    assert overview.running_requests == 0
    assert overview.endpoint in overview.curl
    assert "X-KV-Tenant: alice" in overview.curl
    assert overview.endpoint in overview.python
    compile(overview.python, "example", "exec")


def test_no_id_of_a_tenant_is_in_the_database_its_journal_or_a_backup(
    served: tuple[Rig, Deployment],
) -> None:
    rig, running = served
    views = rig_views(rig)
    report = import_tenants(
        rig.deployments,
        running.id,
        f"tenant,class,region,label:group\n{ALICE},gold,eu,{LABEL}\nnobody@x,,,\n{BOB},,us,\n",
    )
    assert (report.taken, report.unknown) == (2, (3,))
    (alice,) = views.users(running.id, ALICE, reveal="a test").rows
    assert (alice.tenant_class, alice.region, dict(alice.labels)) == (
        "gold",
        "eu",
        {"group": LABEL},
    )
    views.where_is(WORKSPACE, ALICE)
    written = everything_written(rig)
    assert LABEL.encode() in written, "the search finds what is there"
    assert alice.tenant_ref.encode() in written
    assert ALICE.encode() not in written
    assert BOB.encode() not in written

    config = rig.deployments.config_of(running.id)
    asked = {"kind": "tenant", "tenant": ALICE, "requester": "petra"}
    plan = plan_erasure(config, asked, offline=True)
    assert (plan.tenants, plan.sessions) == (1, 2)
    done = erase(config, asked | {"confirm": plan.token}, offline=True)
    rig.deployments.tenants.forget(running.id, {item.tenant_ref for item in done.erased})
    assert {item.tenant_ref for item in done.erased} == {alice.tenant_ref}
    assert views.users(running.id, ALICE).rows == ()
    assert rig.deployments.tenants.of(running.id, [alice.tenant_ref]) == {}
    written = everything_written(rig)
    assert ALICE.encode() not in written
    assert b"gold" not in (rig.home / "backup.sqlite").read_bytes(), (
        "and what was said is forgotten"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "first line"),
        ("name,class\nx,y\n", "first line"),
        ("tenant,tenant_ref\na,b\n", "first line"),
        ("tenant,class,class\na,b,c\n", "twice"),
        ("tenant,class\na,b,c\n", "line 2 has 3 fields"),
        ("tenant,class\n,gold\n", "line 2 names no tenant"),
        ('tenant,class\n"a,b\n', "no CSV"),
        ("tenant,label:mail\nbob@example.com,bob@example.com\n", "must not hold the id"),
    ],
)
def test_a_list_of_tenants_that_is_wrong_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(TenantImportError, match=said):
        parse_tenants(text)


def test_a_list_is_taken_in_whole_or_not_at_all(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    with pytest.raises(TenantImportError, match="region"):
        import_tenants(rig.deployments, made.id, f"tenant_ref,region\nabc1,eu\nabc2,{'x' * 100}\n")
    assert rig.deployments.tenants.of(made.id, ["abc1"]) == {}
    import_tenants(rig.deployments, made.id, "\ufefftenant_ref,region\nABC1,eu\n\n")
    assert rig.deployments.tenants.of(made.id, ["abc1"])["abc1"].region == "eu"
