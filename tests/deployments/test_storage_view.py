"""Storage as one tree over a workspace's deployments, and what is outside of it stays outside."""

from __future__ import annotations

import pytest
from deploy_rig import WORKSPACE, Rig, spec

from kvrun.deployments.model import Deployment
from kvrun.deployments.storage_view import StorageViews
from kvrun.storage import ObjectMissingError


@pytest.fixture
def made(rig: Rig) -> Deployment:
    """A deployment with files as a daemon and a collector leave them."""
    deployment = rig.deployments.create(WORKSPACE, spec())
    folder = deployment.folder / "data/storage" / WORKSPACE / "deployments" / deployment.id
    for name in (
        "kv/0a1b/2c3d/block",
        "audit/w-1%2Flog/segment-0000000000000000.jsonl",
        "audit/w-1%2Flog/signer.vkey",
        "certificates/abc.json",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"bytes of {name}".encode())
    (deployment.folder / "data/secret").write_text("not in Storage")
    return deployment


def test_folders_and_objects_are_listed_with_who_could_read_them(
    rig: Rig, made: Deployment
) -> None:
    views = StorageViews(rig.deployments)
    assert [entry.key for entry in views.browse(WORKSPACE).entries] == ["deployments"]
    (top,) = views.browse(WORKSPACE, "deployments").entries
    assert (top.name, top.folder, top.note) == (made.id, True, "chat")
    kinds = {entry.name: entry for entry in views.browse(WORKSPACE, top.key).entries}
    assert list(kinds) == ["audit", "certificates", "kv"]
    assert "ciphertext" in kinds["kv"].note
    assert "not logged" in kinds["audit"].note
    (tenant,) = views.browse(WORKSPACE, f"{top.key}/kv").entries
    assert (tenant.name, tenant.folder) == ("0a1b", True)
    assert "ciphertext" in tenant.note
    (log,) = views.browse(WORKSPACE, f"{top.key}/audit").entries
    first = views.browse(WORKSPACE, log.key, limit=1)
    assert [entry.name for entry in first.entries] == ["segment-0000000000000000.jsonl"]
    rest = views.browse(WORKSPACE, log.key, first.cursor, limit=1)
    assert ([entry.name for entry in rest.entries], rest.cursor) == (["signer.vkey"], "")
    entry = first.entries[0]
    assert entry.size_bytes == len(views.read(WORKSPACE, entry.key)) > 0


def test_what_is_not_the_workspaces_cannot_be_read(rig: Rig, made: Deployment) -> None:
    views = StorageViews(rig.deployments)
    other = rig.deployments.create("w-2", spec())
    key = f"deployments/{made.id}/certificates/abc.json"
    assert views.read(WORKSPACE, key)
    for workspace, wrong in (
        ("w-2", key),
        (WORKSPACE, f"deployments/{other.id}/certificates/abc.json"),
        (WORKSPACE, f"deployments/{made.id}/../../../../secret"),
        (WORKSPACE, f"deployments/{made.id}/certificates/../../../../../secret"),
        (WORKSPACE, f"deployments/{made.id}//etc/passwd"),
        (WORKSPACE, "deployments/d-unknown/kv/x"),
        (WORKSPACE, f"deployments/{made.id}/certificates/\x00"),
        (WORKSPACE, "/etc/passwd"),
        (WORKSPACE, ""),
    ):
        with pytest.raises(ObjectMissingError):
            views.read(workspace, wrong)
        assert views.browse(workspace, wrong or "x").entries == ()
