"""What opening a key folder must not take away: it is refused, and says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrun.config import KvrunConfig, parse_config
from kvrun.instance.looking import open_listing
from kvrun.keys import KeysError
from kvrun.keys.errors import WrongRootError
from kvrun.keys.listing import TenantsAsked
from kvrun.keys.opening import copying_slots, fetch_keys, open_keys


def configured(base: Path, more: str = "") -> KvrunConfig:
    """A deployment with a file root, its data folder made."""
    (base / "data").mkdir(mode=0o700)
    text = f'[instance]\ndata_dir = "{base}/data"\n{more}'
    return parse_config(text, {}, source=base / "kvrun.toml")


def in_storage(base: Path) -> KvrunConfig:
    return configured(base, f'object_tier = "on"\n[storage]\nurl = "file://{base}/bucket"\n')


@pytest.mark.parametrize(
    ("make", "said"), [(configured, "Mount or put back"), (in_storage, "kvrun keys fetch")]
)
def test_without_its_key_file_nothing_is_opened_under_a_root_that_had_keys_in_it(
    tmp_path: Path, make: Callable[[Path], KvrunConfig], said: str
) -> None:
    """A disk that is not mounted must not count as the oldest copy of all."""
    config = make(tmp_path)
    opened = open_keys(config, "one")
    salt = opened.acquire("alice", "one").salt
    opened.close()
    keys = config.layout.keys
    keys.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(KeysError, match="a start would destroy them") as refused:
            open_keys(config, "one")
        assert said in str(refused.value.hint)
        with pytest.raises(KeysError, match=r"keys\.slots is not there"), open_listing(config):
            pass
    (tmp_path / "elsewhere").rename(keys)
    opened = open_keys(config, "one")
    assert opened.acquire("alice", "one").salt == salt
    opened.close()
    shutil.rmtree(keys)
    (tmp_path / "data-root" / "upper.slots").unlink()
    opened = open_keys(config, "one")
    assert opened.acquire("alice", "one").salt != salt
    opened.close()


def test_a_new_root_without_any_key_lets_a_deployment_begin_anew(tmp_path: Path) -> None:
    config = configured(tmp_path)
    open_keys(config, "one").close()
    shutil.rmtree(tmp_path / "data-root")
    with pytest.raises(WrongRootError, match="belong to root"):
        open_keys(config, "one")
    shutil.rmtree(config.layout.keys)  # as that error says
    open_keys(config, "one").close()


def test_who_only_looks_takes_no_key_away(tmp_path: Path) -> None:
    """A start goes on without what a folder lacks; a look is refused until it is put back."""
    config = configured(tmp_path)
    keys, upper = config.layout.keys, tmp_path / "data-root" / "upper.slots"
    opened = open_keys(config, "one")
    salt = opened.acquire("alice", "one").salt
    opened.close()
    shutil.copytree(keys, tmp_path / "older")
    opened = open_keys(config, "one")
    newer = opened.acquire("bob", "one").salt
    opened.close()
    whole, tables = (keys / "keys.slots").read_bytes(), upper.read_bytes()
    older = (tmp_path / "older" / "keys.slots").read_bytes()
    damaged = whole[:8192] + b"x" * 1024 + whole[8192 + 1024 :]  # the last of five slots
    at = 4096 + 4 * 11264
    without_table = tables[:at] + bytes(11264) + tables[at + 11264 :]
    for slots, beside, said in [
        (older, tables, "is an older copy"),
        (damaged, tables, "holds keys that do not open"),
        (whole[:4096], tables, "is an older copy"),
        (whole, tables[:4096], "is emptied"),
        (whole, without_table, "holds keys that do not open"),
    ]:
        (keys / "keys.slots").write_bytes(slots)
        upper.write_bytes(beside)
        with pytest.raises(KeysError, match=said), open_listing(config):
            pass
        assert ((keys / "keys.slots").read_bytes(), upper.read_bytes()) == (slots, beside)
    (keys / "keys.slots").write_bytes(whole)
    upper.write_bytes(tables)
    with open_listing(config) as listing:
        assert listing.tenants(TenantsAsked(begins="")).total == 2
    opened = open_keys(config, "one")
    assert opened.acquire("alice", "one").salt == salt
    assert opened.acquire("bob", "one").salt == newer
    opened.close()


def day(config: KvrunConfig, session: str = "") -> dict[str, str]:
    """A start, a session of Alice's more, a copy to Storage and a stop; her sessions' salts."""
    opened = open_keys(config, "one")
    with copying_slots(config, opened):
        if session:
            opened.acquire("alice", session)
    names = ("monday", "tuesday", "wednesday")
    salts = {name: keys.salt for name in names if (keys := opened.find("alice", name))}
    opened.close()
    return salts


def with_mondays_folder(base: Path) -> tuple[KvrunConfig, dict[str, str]]:
    """The data disk comes out of a backup, the root and the bucket are of today."""
    config = in_storage(base)
    day(config, "monday")
    keys = config.layout.keys
    shutil.copytree(keys, base / "backup")
    salts = day(config, "tuesday")
    shutil.rmtree(keys)
    shutil.copytree(base / "backup", keys)
    return config, salts


def test_a_start_on_an_older_folder_is_refused_while_storage_has_newer_keys(tmp_path: Path) -> None:
    config, salts = with_mondays_folder(tmp_path)
    assert set(salts) == {"monday", "tuesday"}
    for _ in range(2):
        with pytest.raises(KeysError, match=r"Storage has newer keys in .*\.kvk") as refused:
            day(config)
        assert "`kvrun keys fetch`" in str(refused.value.hint)
    config.layout.keys.rename(tmp_path / "away")  # as it says
    fetch_keys(config)
    assert day(config) == salts
    assert set(day(config, "wednesday")) == {"monday", "tuesday", "wednesday"}


def test_without_the_newer_keys_a_start_goes_on_with_the_older_ones(tmp_path: Path) -> None:
    config, salts = with_mondays_folder(tmp_path)
    with pytest.raises(KeysError, match="Storage has newer keys"):
        day(config)
    for copy in (tmp_path / "bucket").rglob("*.kvk"):
        copy.unlink()
    assert day(config) == {"monday": salts["monday"]}


def test_a_copy_of_another_root_keeps_nobody_from_starting(tmp_path: Path) -> None:
    config, salts = with_mondays_folder(tmp_path)
    (copy,) = (tmp_path / "bucket").rglob("*.kvk")
    other = tmp_path / "other"
    other.mkdir()
    theirs = in_storage(other)
    day(theirs, "monday")
    (foreign,) = (other / "bucket").rglob("*.kvk")
    shutil.copy(foreign, copy)
    assert day(config) == {"monday": salts["monday"]}


def test_a_start_on_an_older_folder_waits_for_storage(tmp_path: Path) -> None:
    config, salts = with_mondays_folder(tmp_path)
    (tmp_path / "bucket").rename(tmp_path / "gone")
    (tmp_path / "bucket").write_text("no folder, so no answer")
    with pytest.raises(KeysError, match="whether Storage has newer keys cannot be seen"):
        day(config)
    (tmp_path / "bucket").unlink()
    (tmp_path / "gone").rename(tmp_path / "bucket")
    config.layout.keys.rename(tmp_path / "away")
    fetch_keys(config)
    assert day(config) == salts
