"""A stopped deployment is not opened for each question, until its keys changed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.deployments import asking
from kvrun.deployments.kept_indexes import KeptIndexes, key_files
from kvrun.instance.parts import folder_lock, open_parts
from kvrun.launch import erasing
from support.held_text import texts_held_by


@pytest.fixture(autouse=True)
def debuggable(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (asking, erasing):
        monkeypatch.setattr(module, "harden_process", lambda: None)


@pytest.fixture
def stopped(short_folder: Path) -> KvrunConfig:
    """A deployment without a daemon, in which alice has a session."""
    config = parse_config("", {}, source=short_folder / "kvrun.toml")
    config.layout.data_dir.mkdir(mode=0o700)
    visit(config, "alice")
    return config


def visit(config: KvrunConfig, tenant: str) -> None:
    with (
        folder_lock(config.layout.data_dir),
        open_parts(config, memory_bytes=1 << 20) as parts,
    ):
        parts.instance.open_session(tenant, "one")


def later() -> int:
    """A minute on: files that were written now have settled by then."""
    return time.time_ns() + 60 * 10**9


def test_who_has_keys_is_known_until_somebody_else_gets_one(
    stopped: KvrunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptIndexes(now_ns=later)
    assert asking.all_sessions(stopped, "bob", kept).total == 0
    with monkeypatch.context() as patch:
        patch.setattr(asking, "open_listing", lambda config: pytest.fail("it was opened"))
        assert asking.all_sessions(stopped, "carol", kept).total == 0
        found = asking.all_sessions(stopped, "alice", kept)
        assert (found.total, [row.session for row in found.rows]) == (1, [""])
        (row,) = asking.tenants(stopped, {}, kept).rows
        assert (row.tenant_ref, row.tenant, row.sessions) == (found.tenant_ref, "", 1)
        assert asking.tenants(stopped, {"query": "alice"}, kept).rows == [row]
    told = asking.tenants(stopped, {"reason": "a letter"}, kept).rows
    assert [row.tenant for row in told] == ["alice"], "for a reason, from the keys"
    visit(stopped, "bob")
    assert asking.all_sessions(stopped, "bob", kept).total == 1
    assert asking.all_sessions(stopped, "carol", kept).total == 0
    asked = {"kind": "tenant", "tenant": "bob"}
    token = erasing.plan_erasure(stopped, asked, offline=True).token
    erasing.erase(stopped, {**asked, "confirm": token}, offline=True)
    assert kept.find(stopped) is None, "keys were destroyed, so nothing is known any more"
    for _ in range(2):  # the first opening after a destruction brings the mark up to date
        assert asking.all_sessions(stopped, "bob", kept).total == 0
    assert kept.find(stopped) is not None


def test_what_was_written_just_now_is_not_relied_on(stopped: KvrunConfig) -> None:
    kept = KeptIndexes()
    assert asking.all_sessions(stopped, "bob", kept).total == 0
    assert kept.find(stopped) is None


def test_keys_that_lie_elsewhere_are_never_taken_for_unchanged(stopped: KvrunConfig) -> None:
    assert key_files(stopped)
    keys = stopped.keys.model_copy(update={"mode": "service"})
    assert key_files(stopped.model_copy(update={"keys": keys})) == ()


def test_no_id_is_kept_as_it_is(stopped: KvrunConfig) -> None:
    kept = KeptIndexes(now_ns=later)
    found = asking.all_sessions(stopped, "alice", kept)
    held = texts_held_by(kept)
    assert found.tenant_ref in held
    assert not any("alice" in text for text in held)
