"""An instance may answer anything: it is an alert or no answer, and nothing of it is stored."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from collect_rig import Rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulator import LOG_ID, World, honest

from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectOutcome
from kvrun.control.follow import LineReader
from kvrun.control.sources import FolderSource, LogState, SegmentInfo, SourceUnavailableError


class Lying(FolderSource):
    """A true log with one answer replaced."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.change_state: Callable[[LogState], LogState] = lambda said: said
        self.change_segments: Callable[[list[SegmentInfo]], list[SegmentInfo]] = lambda said: said
        self.change_bytes: Callable[[bytes], bytes] = lambda said: said

    def state(self) -> LogState:
        return self.change_state(super().state())

    def segments(self, from_seq: int) -> list[SegmentInfo]:
        return self.change_segments(super().segments(from_seq))

    def read(self, first_seq: int, offset: int, size_bytes: int) -> bytes:
        return self.change_bytes(super().read(first_seq, offset, size_bytes))[:size_bytes]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return honest(tmp_path / "instance")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "control-plane")


def manifests(change: Callable[[dict], object]) -> Callable[[Lying], None]:  # type: ignore[type-arg]
    def apply(source: Lying) -> None:
        def changed(said: list[SegmentInfo]) -> list[SegmentInfo]:
            return [
                msgspec.structs.replace(
                    item, manifest=json.dumps(change(json.loads(item.manifest)))
                )
                if item.manifest
                else item
                for item in said
            ]

        source.change_segments = changed

    return apply


def segments(change: Callable[[list[SegmentInfo]], list[SegmentInfo]]) -> Callable[[Lying], None]:
    return lambda source: setattr(source, "change_segments", change)


def data(change: Callable[[bytes], bytes]) -> Callable[[Lying], None]:
    return lambda source: setattr(source, "change_bytes", change)


LIES = {
    "no segment at all": (segments(lambda said: []), AlertKind.TRUNCATED),
    "the first segment is kept back": (segments(lambda said: said[1:]), AlertKind.MISSING_RECORDS),
    "segments without end": (
        segments(lambda said: [said[0], SegmentInfo(said[0].first_seq + 1, 0, "")]),
        AlertKind.MISSING_RECORDS,
    ),
    "a segment twice": (
        segments(lambda said: [said[0], *said] if said else said),
        AlertKind.MISSING_RECORDS,
    ),
    "a manifest that is no object": (manifests(lambda _: None), AlertKind.MANIFEST_MISMATCH),
    "a manifest with something more": (
        manifests(lambda said: {**said, "more": 1}),
        AlertKind.MANIFEST_MISMATCH,
    ),
    "a manifest of an endless file": (
        manifests(lambda said: {**said, "file_bytes": 2**60}),
        AlertKind.TORN,
    ),
    "a manifest of another end": (
        manifests(lambda said: {**said, "after": said["before"]}),
        AlertKind.MANIFEST_MISMATCH,
    ),
    "a manifest with a tree that is none": (
        manifests(lambda said: {**said, "after": {**said["after"], "frontier": ["zz"]}}),
        AlertKind.MANIFEST_MISMATCH,
    ),
    "a manifest with an unsigned checkpoint": (
        manifests(lambda said: {**said, "checkpoint": said["checkpoint"].replace("w1", "w2")[:-9]}),
        AlertKind.BAD_CHECKPOINT,
    ),
    "a manifest with another digest": (
        manifests(lambda said: {**said, "sha256": "0" * 64}),
        AlertKind.MANIFEST_MISMATCH,
    ),
    "nothing to read": (data(lambda said: b""), AlertKind.TORN),
    "no line ever ends": (data(lambda said: b"x" * 100_000), AlertKind.MALFORMED),
    "other bytes": (data(lambda said: said[::-1]), AlertKind.MALFORMED),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_alert_by_its_name_and_nothing_of_it_is_stored(
    rig: Rig, world: World, name: str
) -> None:
    lie, kind = LIES[name]
    source = Lying(world.folder)
    before = {path.name: path.read_bytes() for path in world.segments()}
    lie(source)
    report = rig.collect(source)
    assert report.outcome is CollectOutcome.ALERT, report.message
    assert rig.alert().kind is kind, rig.alert().detail
    kept = rig.folder(LOG_ID).glob("*.jsonl") if rig.folder(LOG_ID).exists() else ()
    assert all(before[path.name] == path.read_bytes() for path in kept)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=300), st.text(max_size=100))
def test_no_checkpoint_or_key_that_can_be_said_breaks_the_collector(
    tmp_path: Path, note: bytes, key: str
) -> None:
    world = honest(tmp_path / "instance") if not (tmp_path / "instance").exists() else None
    folder = tmp_path / "instance/log" if world is None else world.folder
    rig = Rig(tmp_path / "plane")
    source = Lying(folder)
    source.change_state = lambda said: LogState(note, key)
    assert rig.collect(source).outcome is CollectOutcome.UNAVAILABLE
    assert rig.alerts.all() == []


def test_an_instance_that_stops_answering_in_the_middle_is_not_an_alert(
    rig: Rig, world: World
) -> None:
    source = Lying(world.folder)
    left = 2

    def break_off(said: bytes) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise SourceUnavailableError("gone")
        return said

    source.change_bytes = break_off
    report = rig.collect(source)
    assert report.outcome is CollectOutcome.UNAVAILABLE
    assert rig.alerts.all() == []
    lines = len(world.lines())
    assert rig.collect(world.folder).size >= lines


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 5))
def test_a_reader_gives_every_line_once_however_the_file_is_cut(
    pieces: list[bytes], most: int
) -> None:
    reader, given_lines = LineReader(), []
    for piece in pieces:
        lines = reader.take(piece, most)
        assert not lines or lines.endswith(b"\n")
        assert lines.count(b"\n") <= most
        given_lines.append(lines)
    assert b"".join(given_lines) + reader.rest == b"".join(pieces)


def test_a_log_that_is_first_seen_with_a_false_manifest_is_an_alert(world: World, rig: Rig) -> None:
    source = Lying(world.folder)

    def later_and_forged(said: list[SegmentInfo]) -> list[SegmentInfo]:
        first, *rest = [item for item in said if item.first_seq]
        forged = first.manifest.replace(LOG_ID, LOG_ID[:-1] + "x")
        return [msgspec.structs.replace(first, manifest=forged), *rest]

    source.change_segments = later_and_forged
    report = rig.collect(source)
    assert report.outcome is CollectOutcome.STOPPED
    assert report.alert == rig.alert().id
    assert rig.alert().stops
    # Once it is true it is collected.
    rig.alarm.acknowledge(LOG_ID, "looked into", start_over=True)
    source.change_segments = lambda said: said
    assert rig.collect(source).outcome is CollectOutcome.COLLECTED
