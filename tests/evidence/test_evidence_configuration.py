"""Settings over time: each since when by its record, and nothing that no record shows."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from evidence_world import JANUARY, World, moment, quarter, set_to
from test_evidence_attacks import forged

from kvrun.config import parse_config
from kvrun.evidence.check import check_bundle
from kvrun.evidence.configuration import SettingFact, history_of
from kvrun.evidence.export import Request
from kvrun.evidence.logs import SettingsFact
from kvrun.evidence.period import parse_period
from kvrun.evidence.report import BundleCheck
from kvrun.instance.settings_record import (
    SettingsEntry,
    note_settings,
    parse_settings,
    protecting_settings,
    read_settings,
    settings_text,
)

NOW = 1_775_000_000.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return quarter(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    return world.export("january.zip", Request(JANUARY, sample=3))


def configuration(path: Path) -> dict[str, object]:
    with zipfile.ZipFile(path) as archive:
        (found,) = json.loads(archive.read("configuration.json"))["deployments"]
    assert isinstance(found, dict)
    return found


def test_each_setting_says_since_when_and_what_changed_in_the_period(
    world: World, bundle: Path
) -> None:
    found = configuration(bundle)
    settings = found["settings"]
    assert found["on_record"] is True
    (change,) = found["changes"]  # type: ignore[misc]
    at = change["at"]
    assert settings["encryption"] == {"value": "on", "since": at}  # type: ignore[index]
    assert settings["stateless"] == {"value": "no", "since": at}  # type: ignore[index]
    assert (change["setting"], change["before"], change["after"]) == ("strict", "no", "yes")
    assert change["at"].startswith("2026-01-12")
    assert settings["strict"] == {"value": "yes", "since": change["at"]}  # type: ignore[index]
    # The deployment was made a day before its first daemon started.
    assert found["encryption"]["since"] == "2025-12-30T00:00:00.000000Z"  # type: ignore[index]
    assert found["isolation"]["on_by_default"] is True  # type: ignore[index]
    both = configuration(
        world.export("both.zip", Request(parse_period("2026-01-01", "2026-03-01")))
    )
    assert [item["setting"] for item in both["changes"]] == ["strict", "stateless"]  # type: ignore[attr-defined]


def test_without_records_it_says_what_is_set_now_and_not_since_when(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.day("2026-01-02")
    world.collect()
    found = configuration(world.export("plain.zip"))
    assert found["on_record"] is False
    assert found["settings"]["audit.mode"] == {"value": "require", "since": ""}  # type: ignore[index]


def test_a_line_in_the_data_folder_stands_for_no_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim = settings_text({"encryption": "on", "strict": "yes"})
    world.layout.settings_record.write_bytes(
        msgspec.json.encode(SettingsEntry(moment("2020-01-01"), claim)) + b"\n"
    )
    world.day("2026-01-02")
    world.collect()
    found = configuration(world.export("claimed.zip"))
    assert found["on_record"] is False
    assert found["settings"] == {
        "encryption": {"value": "on", "since": ""},
        "strict": {"value": "yes", "since": ""},
    }
    assert found["changes"] == []
    assert not found["encryption"]["since"].startswith("2020")  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["settings"]["strict"].update(value="no"), "not what was recorded last"),
        (
            lambda one: one["changes"].append(
                {"at": "2026-01-20T00:00:00.000000Z", "setting": "x", "before": "a", "after": "b"}
            ),
            "no record shows the change of x",
        ),
        (lambda one: one.update(id="other"), "other deployments"),
    ],
)
def test_what_no_record_shows_is_found(
    world: World,
    bundle: Path,
    tmp_path: Path,
    change: Callable[[dict[str, object]], object],
    said: str,
) -> None:
    def rewrite(files: dict[str, bytes]) -> None:
        whole = json.loads(files["configuration.json"])
        change(whole["deployments"][0])
        files["configuration.json"] = json.dumps(whole).encode()

    path = tmp_path / "forged.zip"
    path.write_bytes(forged(world, bundle, rewrite))
    report = check_bundle(path, anchor=world.anchor, now=NOW)
    assert [item.check for item in report.failed] == [BundleCheck.CONFIGURATION]
    assert said in report.failed[0].detail


def test_a_daemon_records_its_settings_at_every_start_and_keeps_those_that_changed(
    tmp_path: Path,
) -> None:
    class Journal:
        def __init__(self) -> None:
            self.said: list[str] = []

        def deployment_event(self, event: object, reason: str = "") -> None:
            self.said.append(reason)

        def commit(self) -> None:
            return

    journal, path = Journal(), tmp_path / "settings.jsonl"
    strict = "[deployment]\nstrict = true\n"
    for text, new in (("", True), ("", False), (strict, True), (strict, False), ("", True)):
        config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
        assert note_settings(config, journal, path, lambda: 7.0) is new  # type: ignore[arg-type]
    said = [parse_settings(text)["strict"] for text in journal.said]
    assert said == ["no", "no", "yes", "yes", "no"]
    kept = [parse_settings(item.text)["strict"] for item in read_settings(path)]
    assert kept == ["no", "yes", "no"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert parse_settings("vllm 0.32.0") == {}
    plain = protecting_settings(parse_config("", {}, source=tmp_path / "kvrun.toml"))
    assert parse_settings(settings_text(plain)) == plain
    assert (plain["encryption"], plain["isolation"]) == ("on", "on")
    assert plain["residency.mode"] == "none"
    for mode in ("enforce", "warn", "off"):
        text = f'[residency]\nrepository = "/srv/policies"\nmode = "{mode}"\n'
        config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
        assert protecting_settings(config)["residency.mode"] == mode


def test_the_first_that_is_known_of_a_setting_is_no_change() -> None:
    def fact(at: str, text: str) -> SettingsFact:
        return SettingsFact(at=at, text=text)

    settings, changes = history_of(
        [fact("1", "settings: a=1")],
        [fact("2", "settings: a=1 b=1"), fact("3", "settings: a=2 b=1"), fact("4", "other a=9")],
    )
    assert [(name, item.value, item.since) for name, item in sorted(settings.items())] == [
        ("a", "2", "3"),
        ("b", "1", "2"),
    ]
    since = history_of([fact("1", "settings: a=1 c=1")], [fact("2", "settings: a=1")])
    assert since == ({"a": SettingFact(value="1", since="2")}, [])
    assert [(item.at, item.setting) for item in changes] == [("3", "a")]
    assert set_to(strict="no").reason.startswith("settings: ")
    assert moment("2026-01-01") > 0
