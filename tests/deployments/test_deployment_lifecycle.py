"""Deployments with real daemons: rebuilt warm, drained, deleted with the log kept."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploy_rig import DAEMON, WORKSPACE, Rig, Users, processes_of, spec

from kvrun.audit.record import Event
from kvrun.audit.segment import list_segments
from kvrun.cache.events import Tier
from kvrun.cli.main import app
from kvrun.control.collector import CollectOutcome, CollectReport
from kvrun.control.rounds import RoundReport
from kvrun.deployments import deleting, supervision
from kvrun.deployments.alerts_view import AlertViews
from kvrun.deployments.audit_view import AuditViews
from kvrun.deployments.errors import NameTakenError, WrongStateError
from kvrun.deployments.model import Deployment, DeploymentState
from kvrun.deployments.record_pages import RecordFilter
from kvrun.deployments.storage_view import StorageViews
from kvrun.deployments.views import DeploymentViews
from kvrun.erasure.certificate import RequestKind
from kvrun.errors import KvrunError
from kvrun.gateway.draining import Drain
from kvrun.gateway.errors import GatewayError
from kvrun.launch.admin import ask_daemon


def blocks_on_disk(deployment: Deployment) -> list[Path]:
    kv = deployment.folder / "data/storage" / WORKSPACE / "deployments"
    return [path for path in kv.rglob("*") if path.is_file() and "kv" in path.parts]


def with_blocks(rig: Rig) -> tuple[Deployment, list[bytes]]:
    """A running deployment that has sealed blocks of alice and bob on disk."""
    running = rig.running()
    users = Users(rig, running)
    with users.engine() as engine:
        hashes = [users.store(engine, tenant) for tenant in ("alice", "bob")]
    ask_daemon(users.config, "flush")
    assert blocks_on_disk(running)
    return running, hashes[0]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Rig, Deployment, list[bytes]]]:
    """One that runs and has blocks; the last test of those that use it deletes it."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    rig = Rig(folder, DAEMON)
    yield rig, *with_blocks(rig)
    rig.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_collecting_now_says_what_is_new(served: tuple[Rig, Deployment, list[bytes]]) -> None:
    real, running, _ = served
    views = AuditViews(real.deployments)
    assert views.audit(running.id).banners == ()
    (report,) = views.collect_now(running.id).logs
    assert report.new_records > 0
    users = Users(real, running)
    users.open("carol")
    ask_daemon(users.config, "flush")
    (banner,) = views.audit(running.id).banners
    assert banner.newer_records
    assert f"{banner.newer_records} newer records not collected yet" in banner.text
    pages, cursor = [], ""
    while True:
        page = views.records(running.id, cursor=cursor, limit=3)
        pages += page.records
        cursor = page.cursor
        if not cursor:
            break
    assert [record.seq for record in pages] == list(reversed(range(banner.verified_up_to)))
    assert "alice" not in real.deployments.logs(running.id, "instance")


def test_a_rebuild_is_a_new_instance_that_is_warm(
    served: tuple[Rig, Deployment, list[bytes]],
) -> None:
    real, running, hashes = served
    before = {process.pid for process in processes_of(running)}
    real.deployments.rebuild(running.id)
    rebuilt = real.until(running.id, DeploymentState.RUNNING)
    assert rebuilt.instance == 2
    assert before.isdisjoint(process.pid for process in processes_of(rebuilt))
    users = Users(real, rebuilt)
    with users.engine() as engine:
        handle, tiers = users.admit(engine, "alice", hashes)
        assert set(tiers) == {Tier.DISK}, "its blocks are found again"
        assert set(engine.load(handle, hashes).plain) == set(hashes), "and open"
        _, others = users.admit(engine, "carol", hashes)
        assert set(others) == {0}


def test_a_drain_refuses_new_requests_and_waits_for_the_last_one(real: Rig) -> None:
    running = real.running()
    users = Users(real, running)
    door = Drain(users.config.gateway.state_dir)
    door.check()
    with users.engine() as engine:
        handle, _ = users.admit(engine, "alice")
        real.deployments.drain(running.id)
        with pytest.raises(GatewayError) as refused:
            Drain(users.config.gateway.state_dir).check()
        assert (refused.value.status, refused.value.code) == (503, "draining")
        for _ in range(5):
            real.deployments.supervise()
        assert real.deployments.get(running.id).state is DeploymentState.DRAINING
        engine.finish(handle)
        real.until(running.id, DeploymentState.STOPPED)
    views = DeploymentViews(real.deployments)
    assert views.users(running.id).total == 1, "a stopped one is asked through its folder"
    (place,) = views.where_is(WORKSPACE, "alice")
    assert place.found
    assert views.overview(running.id).requests is None


def test_a_deleted_deployment_keeps_its_log_and_its_record_and_nothing_else(
    served: tuple[Rig, Deployment, list[bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real, running, _ = served
    users = DeploymentViews(real.deployments).users(running.id).total
    assert users >= 2
    root = running.folder / "data-root"
    assert (root / "root.slots").is_file()
    done = real.deployments.delete(running.id, "petra (privacy)")
    deleted = real.deployments.get(running.id)
    assert deleted == done.deployment
    assert deleted.state is DeploymentState.DELETED
    assert processes_of(running) == []
    assert blocks_on_disk(running) == []
    left = {path.name for path in (running.folder / "data").iterdir()}
    assert not {name.removesuffix(".removed") for name in left} & {"keys", "root", "run", "gateway"}
    assert not (running.folder / "api_keys.json").exists()
    assert not root.exists()

    storage = StorageViews(real.deployments)
    (row,) = storage.certificates(WORKSPACE, running.id).rows
    assert (row.certificate_id,) == deleted.certificates
    assert row.statement.request.kind is RequestKind.DEPLOYMENT
    assert row.statement.request.requester == "petra (privacy)"
    assert len(row.statement.keys) == 2 * users, "each one's own key and the session's"
    assert json.loads(done.openings[row.certificate_id])["id"] == running.id
    assert storage.certificate(running.id, row.certificate_id)

    views = AuditViews(real.deployments)
    view = views.audit(running.id)
    (banner,) = view.banners
    assert "witness: none" in banner.text
    assert f"verified up to record {banner.verified_up_to}" in banner.text
    erased = views.records(running.id, RecordFilter(event="erased")).records
    assert {record.event for record in erased} == {Event.ERASED}
    newest = views.records(running.id, limit=1).records[0]
    assert newest.seq == banner.verified_up_to - 1, "every record was collected"

    copy = tmp_path / "log"
    copy.mkdir()
    for segment in view.segments:
        (copy / segment.name).write_bytes(views.segment(running.id, segment.name))
    lines = b"".join(path.read_bytes() for path in list_segments(copy)).splitlines()
    assert len(lines) == banner.verified_up_to
    with pytest.raises(SystemExit) as ended:
        app(["verify", str(copy), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code in (0, 2), said

    for act in (
        real.deployments.start,
        real.deployments.stop,
        real.deployments.drain,
        lambda name: real.deployments.delete(name, "again"),
        lambda name: real.deployments.set_api_keys(name, []),
    ):
        with pytest.raises(WrongStateError):
            act(running.id)
    assert AlertViews(real.deployments).alerts(WORKSPACE).rows == ()
    assert DeploymentViews(real.deployments).users(running.id).unavailable
    assert real.deployments.create(WORKSPACE, spec()).id != running.id, "its name is free again"


STEPS = ("close_gateway", "_stop", "erase", "remove_data", "_collect", "store_rest", "finish")


def then_the_power_goes(step: Callable[..., object]) -> Callable[..., object]:
    def cut(*given: object, **named: object) -> object:
        step(*given, **named)
        raise KvrunError("the power went")

    return cut


def test_a_deletion_collects_first_and_is_finished_with_one_certificate_wherever_it_was_cut(
    real: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = with_blocks(real)
    away = CollectReport(source="a", outcome=CollectOutcome.UNAVAILABLE, message="it is away")
    with monkeypatch.context() as cut:
        cut.setattr(deleting, "run_round", lambda *_, **__: RoundReport(logs=[away]))
        with pytest.raises(KvrunError, match="the log cannot be collected yet: it is away"):
            real.deployments.delete(running.id, "petra")
    assert processes_of(running) == []
    config = real.deployments.config_of(running.id)
    left = deleting.plan_erasure(config, {"kind": "deployment"}, offline=True)
    assert left.tenants == 2, "evidence first: no key went before the log was collected"
    assert StorageViews(real.deployments).certificates(WORKSPACE, running.id).rows == ()

    def delete() -> None:
        real.deployments._supervision.delete(running.id)

    for step in STEPS:
        owner = supervision.DeploymentStore if step == "finish" else deleting
        with monkeypatch.context() as cut:
            cut.setattr(owner, step, then_the_power_goes(getattr(owner, step)))
            with pytest.raises(KvrunError, match="the power went"):
                delete()
        if step != "finish":
            found = real.deployments.get(running.id)
            assert found.state is DeploymentState.DELETING
            assert "the power went" in found.reason
    later = real.again()
    later.clock.ahead_s += 1000
    deleted = later.until(running.id, DeploymentState.DELETED)
    assert len(deleted.certificates) == 1
    assert blocks_on_disk(running) == []
    assert AuditViews(later.deployments).records(running.id, RecordFilter(event="erased")).records
    later.close()


def test_one_that_never_ran_is_deleted_without_a_certificate(rig: Rig) -> None:
    made = rig.deployments.create(WORKSPACE, spec())
    with pytest.raises(NameTakenError):
        rig.deployments.create(WORKSPACE, spec())
    done = rig.deployments.delete(made.id, "petra")
    assert done.certificates == ()
    assert done.deployment.state is DeploymentState.DELETED
