"""One waiting alert never hides another one."""

from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import World, honest

from kvrun.control.alerts import AlertKind
from kvrun.control.remembered import RememberedLog


@pytest.fixture
def world(tmp_path: Path) -> World:
    return honest(tmp_path / "instance")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "control-plane")


def remembered(world: World, rig: Rig) -> RememberedLog:
    rig.collect(world.folder)
    (found,) = rig.memory.all()
    return found


def test_each_witness_and_each_thing_it_says_is_an_alert_of_its_own(world: World, rig: Rig) -> None:
    log = remembered(world, rig)
    for about in ("a: an old size", "b: another history", "a: another history", "a: an old size"):
        kind, files = AlertKind.WITNESS_REFUSED, {"witness-answer": about.encode()}
        rig.alarm.warn(kind, log, f"{about} 7", files, about=about)
    found = rig.alerts.all()
    assert sorted(item.about for item in found) == [
        "a: an old size",
        "a: another history",
        "b: another history",
    ]
    for item in found:
        assert (rig.alerts.place(item.id) / "witness-answer").read_text() == item.about


def test_a_growing_count_brings_the_waiting_alert_up_to_date(world: World, rig: Rig) -> None:
    log = remembered(world, rig)

    def warn(count: int, side: str = "engine") -> bool:
        files = {"counts.json": b"%d" % count}
        detail = f"{count} requests have no record"
        kind = AlertKind.OMISSION
        return rig.alarm.warn(kind, log, detail, files, about=side, count=count) is not None

    assert warn(1)
    assert not warn(1)
    assert warn(90_000)
    assert not warn(40)
    assert warn(2, "gateway")
    engine, gateway = sorted(rig.alerts.all(), key=lambda item: item.about)
    assert (engine.count, engine.detail) == (90_000, "90000 requests have no record")
    assert gateway.count == 2
    place = rig.alerts.place(engine.id)
    assert (place / "counts.json").read_text() == "1"
    assert (place / "latest-counts.json").read_text() == "90000"
    assert engine.files == ["counts.json", "latest-counts.json"]
    # On record each time, and a new one after it was looked into.
    assert rig.logged().count(("log_alert", "omission")) == 3
    rig.alarm.acknowledge(log.log, "looked into", start_over=False)
    assert warn(1)
