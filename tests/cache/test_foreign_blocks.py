"""Blocks of models that nobody serves any more go, without a key and without opening a session."""

import os
from pathlib import Path

import pytest
from packbox import PackBox

from kvrun.cache import CacheEventKind, Tier
from kvrun.cache.served import ServedModel, ServedModels, foreign_spans, within

DAY = 24 * 3600.0
OLD, NEW = b"o" * 32, b"n" * 32


def served(*models: tuple[str, float]) -> list[ServedModel]:
    return [ServedModel(model, since) for model, since in models]


def test_times_of_other_models_are_foreign_once_the_last_served_for_a_day():
    history = served(("a", 10.0), ("b", 20.0))
    assert foreign_spans(history, 20 + DAY - 1, DAY) == ()
    assert foreign_spans(history, 20 + DAY, DAY) == ((10.0, 20.0),)
    assert foreign_spans([], DAY, DAY) == foreign_spans(history[:1], 10 * DAY, DAY) == ()


def test_a_model_that_comes_back_keeps_what_it_stored_before():
    history = served(("a", 10.0), ("b", 20.0), ("a", 30.0))
    spans = foreign_spans(history, 30 + DAY, DAY)
    assert spans == ((20.0, 30.0),)
    assert [at for at in (5.0, 15.0, 20.0, 29.0, 30.0) if within(spans)(at)] == [20.0, 29.0]
    assert [at for at in (20.0, 22.0, 23.0, 26.0, 28.0) if within(spans, 3.0)(at)] == [23.0, 26.0]


def test_the_history_outlives_restarts_and_a_damaged_one_removes_nothing(tmp_path: Path):
    file = tmp_path / "models.json"
    ServedModels(file).note(OLD, 10.0)
    again = ServedModels(file)
    again.note(OLD, 15.0)
    again.note(NEW, 20.0)
    assert ServedModels(file).foreign(20 + DAY, DAY) == ((10.0, 20.0),)
    file.write_text("[{")
    assert ServedModels(file).foreign(20 + DAY, DAY) == ()


def dated(box: PackBox, files: list[Path]) -> None:
    """Gives files the box's time instead of the machine's."""
    for path in files:
        if path.stat().st_mtime > 10 * DAY:
            os.utime(path, (box.time, box.time))


def blocks_on_disk(box: PackBox) -> list[Path]:
    assert box.disk is not None
    return [path for path in (box.disk / "kv").rglob("*.kvs") if path.is_file()]


@pytest.fixture
def box(tmp_path: Path) -> PackBox:
    """Sessions ``before``, ``old`` and ``new`` of one model and the next, on disk and in packs."""
    box = PackBox(
        tmp_path / "bucket", disk=tmp_path / "disk", served=tmp_path / "models.json", time=2000.0
    )
    for session_ref, model in (("before", None), ("old", OLD), ("new", NEW)):
        if model is not None:
            box.store.serve(model)
            box.advance(1)
        box.put(box.session(session_ref=session_ref), 1, 2)
        assert box.store.flush()
        box.advance(1000)
        dated(box, [*blocks_on_disk(box), *box.packs()])
        box.advance(1000)
    return box


def sessions(files: list[Path]) -> set[str]:
    return {path.parent.name for path in files}


def test_unopened_sessions_lose_what_another_model_stored_on_disk_and_in_storage(box: PackBox):
    box.restart()
    box.store.expire()
    assert len(blocks_on_disk(box)) == 6
    assert len(box.packs()) == 3
    box.restart()
    box.store.serve(NEW)
    box.advance(DAY)
    box.store.expire()
    assert sessions(blocks_on_disk(box)) == {"before", "new"}
    assert sessions(box.packs()) == {"before", "new"}
    assert box.kinds()[CacheEventKind.EVICTED, Tier.DISK] == 2
    assert box.kinds()[CacheEventKind.EVICTED, Tier.OBJECT] == 2
    reasons = {e.reason for e in box.events if e.kind is CacheEventKind.EVICTED}
    assert reasons == {"another model"}
    session = box.session(session_ref="new")
    assert box.tiers(session, 1, 2) == [Tier.DISK] * 2


def test_an_opened_session_loses_them_from_memory_and_disk_too(box: PackBox):
    session = box.session(session_ref="old")
    box.advance(DAY)
    box.store.expire()
    assert sessions(blocks_on_disk(box)) == {"before", "new"}
    assert Tier.MEMORY not in box.tiers(session, 1, 2)
    assert Tier.DISK not in box.tiers(session, 1, 2)
    assert box.tiers(box.session(session_ref="new"), 1, 2) == [Tier.MEMORY] * 2


def test_what_else_lies_there_is_left_and_names_no_pack_of_another_place(box: PackBox):
    packs = {path.parent.name: path for path in box.packs()}
    kv = packs["old"].parents[2]
    odd = [
        kv / "odd=name" / "old" / packs["old"].name,
        kv / "copies" / "t1" / "new" / packs["new"].name,
        kv / packs["new"].name,
    ]
    for path in odd:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not ours")
        os.utime(path, (packs["old"].stat().st_mtime,) * 2)
    box.restart()
    box.advance(DAY)
    box.store.expire()
    assert [path.exists() for path in odd] == [True] * 3
    assert [packs[name].exists() for name in ("before", "old", "new")] == [True, False, True]


def test_packs_that_others_write_too_are_judged_by_no_time(box: PackBox):
    box.alone = False
    box.restart()
    box.advance(DAY)
    box.store.expire()
    assert sessions(blocks_on_disk(box)) == {"before", "new"}
    assert sessions(box.packs()) == {"before", "old", "new"}


def test_what_storage_did_not_delete_is_tried_again(box: PackBox, monkeypatch: pytest.MonkeyPatch):
    box.restart()
    box.advance(DAY)
    monkeypatch.setattr(box.objects, "delete", lambda *refs: False)
    box.store.expire()
    assert len(box.packs()) == 3
    monkeypatch.undo()
    box.store.expire()
    assert sessions(box.packs()) == {"before", "new"}
    listed = []
    monkeypatch.setattr(box.objects, "collect", lambda *asked: listed.append(asked))
    box.store.expire()
    assert listed == [], "once is enough"
