"""A PKCS#11 root in a real token (SoftHSM): what the token keeps, loses and is asked for.

Named so that ``-k "not pkcs11"`` leaves all of it out where no token can be made.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from keys_support import open_service
from pkcs11.constants import Attribute, ObjectClass
from root_rigs import PIN, SOFTHSM, Pkcs11Rig, make_token, restart_module

from kvrun.config import parse_config
from kvrun.keys import (
    ClaimClass,
    EpochGoneError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
)
from kvrun.keys.keeper import Keeper
from kvrun.keys.kept_root import KeptRoot
from kvrun.keys.open_root import open_root, probe_root
from kvrun.keys.pkcs11_token import Pkcs11Keeper


@pytest.fixture
def operator(pkcs11_rig: Pkcs11Rig) -> Iterator[Any]:
    """A session of the token's owner, in the same process: logins are shared."""
    token = pkcs11.lib(str(SOFTHSM)).get_token(token_label=pkcs11_rig.token)
    session = token.open(rw=True, user_pin=PIN)
    yield session
    with suppress(pkcs11.exceptions.PKCS11Error):
        session.close()


def objects_of(session: Any, root: KeptRoot) -> list[Any]:
    return [
        found
        for found in session.get_objects({Attribute.CLASS: ObjectClass.SECRET_KEY})
        if bytes(found[Attribute.ID]).startswith(root.facts.root_id)
    ]


def test_pkcs11_keys_never_leave_the_token(pkcs11_rig: Pkcs11Rig, operator: Any) -> None:
    root = pkcs11_rig.open()
    root.create_epoch(1)
    (key,) = objects_of(operator, root)
    assert key[Attribute.SENSITIVE]
    assert key[Attribute.NEVER_EXTRACTABLE]
    assert key[Attribute.PRIVATE]
    with pytest.raises(pkcs11.exceptions.AttributeSensitive):
        key[Attribute.VALUE]
    with pytest.raises(pkcs11.exceptions.PKCS11Error):
        key.copy({Attribute.EXTRACTABLE: True})
    with pytest.raises(pkcs11.exceptions.PKCS11Error):
        key[Attribute.EXTRACTABLE] = True
    root.close()


def test_pkcs11_objects_come_and_go_with_epochs(pkcs11_rig: Pkcs11Rig, operator: Any) -> None:
    root = pkcs11_rig.open()
    root.create_epoch(1)
    for epoch in (2, 3):
        root.create_epoch(epoch)
        assert len(objects_of(operator, root)) == 2
        root.destroy_epoch(epoch - 1)
        assert len(objects_of(operator, root)) == 1
    root.close()


# The binding cannot end a search in a session that is gone, and says so from a destructor.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pkcs11_work_goes_on_after_the_token_restarted(
    pkcs11_rig: Pkcs11Rig, tmp_path: Path
) -> None:
    service = open_service(tmp_path, root=pkcs11_rig.open())
    service.acquire("alice", "stays")
    service.acquire("alice", "goes")
    restart_module()
    service.destroy_session("alice", "goes")
    pkcs11.lib(str(SOFTHSM)).finalize()  # the module lost even its start
    service.acquire("alice", "new")
    service.destroy_session("alice", "new")
    root = service._root
    assert isinstance(root, KeptRoot)
    root.check()
    service.close()


def test_pkcs11_a_wrong_pin_is_tried_once_so_that_the_token_does_not_lock(
    pkcs11_rig: Pkcs11Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pkcs11_rig.open()
    pkcs11_rig.withdraw()
    tried = []
    keeper = root._keeper
    assert isinstance(keeper, Pkcs11Keeper)
    find = keeper._find_token
    monkeypatch.setattr(keeper, "_find_token", lambda: tried.append(1) or find())
    for _ in range(5):
        with pytest.raises(RootRevokedError, match=r"refuse.* PIN"):
            root.check()
    assert tried == [1]
    pkcs11_rig.allow()
    root.check()
    root.close()


def test_pkcs11_an_object_that_its_owner_destroyed_is_a_refusal(
    pkcs11_rig: Pkcs11Rig, operator: Any
) -> None:
    root = pkcs11_rig.open()
    root.create_epoch(1)
    root.check()
    for found in objects_of(operator, root):
        found.destroy()
    with pytest.raises(RootRevokedError, match="holds no key"):
        root.check()
    root.close()
    with pytest.raises(RootRevokedError, match="gone, disabled"):
        pkcs11_rig.open()


def test_pkcs11_roots_share_a_token_without_touching_each_other(
    pkcs11_rig: Pkcs11Rig, tmp_path: Path
) -> None:
    first = pkcs11_rig.open()
    first.create_epoch(1)
    first.close()
    own = pkcs11_rig.folder
    pkcs11_rig.folder = tmp_path / "second"
    second = pkcs11_rig.open()
    second.create_epoch(1)
    second.create_epoch(2)
    second.destroy_epoch(1)
    second.close()
    pkcs11_rig.folder = own
    first = pkcs11_rig.open()
    assert first.epochs() == (1,)
    first.load_epoch(1, memoryview(bytearray(32)))
    first.close()


def test_pkcs11_what_softhsm_destroys_was_an_ordinary_file(
    pkcs11_rig: Pkcs11Rig, tmp_path: Path
) -> None:
    tokens = Path(os.environ["KVRUN_TEST_TOKENS"])
    root = pkcs11_rig.open()
    root.create_epoch(1)
    files = {path: path.read_bytes() for path in tokens.rglob("*.object")}
    root.create_epoch(2)
    root.destroy_epoch(1)
    gone = [path for path in files if not path.exists()]
    assert len(gone) == 1
    assert root.facts.claim is ClaimClass.LOGICAL
    assert "without overwriting" in root.facts.reason
    root.close()
    # Who copied the file has the key back: that is what the claim class says.
    gone[0].write_bytes(files[gone[0]])
    restart_module()
    keeper = pkcs11_rig.keeper()
    keeper.bind(root.facts.root_id, fresh=False)
    assert keeper.live([1, 2]) == {1, 2}
    keeper.close()
    gone[0].unlink()
    restart_module()


def test_pkcs11_tls_in_the_same_process_is_not_disturbed(
    pkcs11_rig: Pkcs11Rig, bao: Any, tmp_path: Path
) -> None:
    """SoftHSM and Python's ssl share OpenSSL and its queue of errors."""
    keeper: Keeper = pkcs11_rig.keeper()
    keeper.bind(uuid.uuid4().bytes, fresh=True)
    wrapped = keeper.encrypt(keeper.new_key(0), b"one", memoryview(bytes(32)))
    for _ in range(3):
        with pytest.raises(Exception, match="does not open"):
            keeper.decrypt_into(1, b"two", wrapped, memoryview(bytearray(32)))
        assert bao.call("GET", "sys/health")["initialized"]
    with pytest.raises(EpochGoneError):
        keeper.encrypt(9, b"one", memoryview(bytes(32)))
    keeper.destroy(1)
    keeper.close()


@pytest.mark.parametrize(
    ("module", "token", "kind", "says"),
    [
        ("/nowhere/libnone.so", "kvrun", RootError, "cannot be loaded"),
        (str(SOFTHSM), "nobody", RootUnavailableError, "shows no token 'nobody'"),
    ],
)
def test_pkcs11_what_is_not_there_is_named(
    softhsm: str, tmp_path: Path, module: str, token: str, kind: type[RootError], says: str
) -> None:
    config = configured(tmp_path, f"pkcs11:{module}?token={token}&key=chat")
    with pytest.raises(kind, match=says) as caught:
        open_root(config.keys, tmp_path, strict=False, snapshot_days=0)
    assert type(caught.value) is kind
    assert PIN not in caught.value.message


def test_pkcs11_two_tokens_of_one_name_are_refused(softhsm: str, tmp_path: Path) -> None:
    make_token("twin")
    make_token("twin")
    restart_module()
    config = configured(tmp_path, f"pkcs11:{SOFTHSM}?token=twin&key=chat")
    with pytest.raises(RootError, match="More than one token"):
        open_root(config.keys, tmp_path, strict=False, snapshot_days=0)


def test_pkcs11_the_configured_root_opens(softhsm: str, tmp_path: Path) -> None:
    config = configured(tmp_path, f"pkcs11:{SOFTHSM}?token={softhsm}&key=chat")
    claim, reason = probe_root(config.keys, tmp_path, snapshot_days=0)
    assert claim is ClaimClass.LOGICAL
    assert "SoftHSM" in reason
    assert not (tmp_path / "root-pkcs11").exists()
    root = open_root(config.keys, tmp_path, strict=False, snapshot_days=0)
    root.create_epoch(1)
    assert root.facts.kind == "pkcs11"
    assert (tmp_path / "root-pkcs11" / "kept.slots").exists()
    root.close()


def configured(folder: Path, root: str) -> Any:
    pin = folder / "pin"
    pin.touch(0o600)
    pin.write_text(PIN)
    text = f'[keys]\nroot = "{root}"\nroot_secret = "file:{pin}"'
    return parse_config(text, {}, source=folder / "kvrun.toml")
