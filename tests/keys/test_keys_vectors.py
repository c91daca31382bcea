"""The format is the one on paper: files built by an independent script open, and the reverse."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from keys_support import Clock, open_service

from kvrun.keys import FileRoot, KeyLimits, KeyService, RecoveryReport

VECTORS = Path(__file__).parents[1] / "vectors"


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_key_slots", VECTORS / "make_key_slots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def vector() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "key_slots.json").read_text())
    return loaded


def facts(service: KeyService, tenant: str, session: str) -> dict[str, Any]:
    keys = service.acquire(tenant, session)
    entry = service._ring.find(tenant, session)
    assert entry is not None
    with service._ring.opened(entry) as opened:
        dek = bytes(opened.dek).hex()
    return {
        "tenant": tenant,
        "session": session,
        "dek": dek,
        "salt": keys.salt,
        "tenant_ref": keys.tenant_ref,
        "session_ref": keys.session_ref,
        "block_name_of_6162": keys.block_name(b"ab").hex(),
        "generation": keys.generation,
        "key_id": keys.key_id,
    }


def test_the_stored_vector_is_what_the_script_makes(
    by_hand: ModuleType, vector: dict[str, Any]
) -> None:
    assert by_hand.make() == vector


def test_files_built_by_hand_open(
    tmp_path: Path, by_hand: ModuleType, vector: dict[str, Any]
) -> None:
    for folder, name in (
        ("root", "root.slots"),
        ("root", "upper.slots"),
        ("keys", "keys.slots"),
    ):
        (tmp_path / folder).mkdir(mode=0o700, exist_ok=True)
        path = tmp_path / folder / name
        path.touch(mode=0o600)
        path.write_bytes(by_hand.file_bytes(vector["files"][name]))
    service = KeyService.open(
        tmp_path / "keys",
        FileRoot(tmp_path / "root", create=False),
        workspace=vector["workspace"],
        deployment=vector["deployment"],
        limits=KeyLimits(),
        now=Clock(vector["now"]),
    )
    assert service.epoch == 3
    assert service.recovery == RecoveryReport()
    for expected in vector["sessions"]:
        assert service.find("alice", expected["session"]) is not None
        assert facts(service, "alice", expected["session"]) == expected
    # The mark in the vector says that generations up to 1004 may have been used.
    assert service.acquire("alice", "new").generation == 1005
    service.close()


def test_a_session_slot_that_the_service_wrote_opens_by_hand(
    tmp_path: Path, by_hand: ModuleType
) -> None:
    service = open_service(tmp_path)
    names = [("alice", "one"), ("alice", "two"), ("bob", "x" * 128)]
    for name in [*names, ("bob", "gone")]:
        service.acquire(*name)
    service.destroy_session("bob", "gone")
    expected = [facts(service, *name) for name in names]
    service.close()
    root_file = (tmp_path / "root" / "root.slots").read_bytes()
    keys_file = (tmp_path / "keys" / "keys.slots").read_bytes()
    upper_file = (tmp_path / "root" / "upper.slots").read_bytes()
    found = by_hand.open_by_hand(root_file, upper_file, keys_file)
    assert sorted(found, key=lambda f: f["key_id"]) == sorted(expected, key=lambda f: f["key_id"])
