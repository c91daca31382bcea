"""Exports say what the records say, in forms that other programs accept."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema
from py_ocsf_models.events.base_event import BaseEvent
from simulator import honest
from typer.testing import CliRunner

from kvrun.audit.errors import AuditError
from kvrun.audit.export import (
    CSV_COLUMNS,
    ExportFormat,
    Selection,
    csv_line,
    export_lines,
    parse_moment,
)
from kvrun.audit.ocsf import KINDS, OCSF_VERSION, OcsfClass, ocsf_event
from kvrun.audit.record import Event, Record, decode_record
from kvrun.cli.audit import app

PAGE = (Path(__file__).parents[2] / "docs/spec/audit-log.md").read_text()
EXAMPLES = [
    decode_record(line.encode()) for line in PAGE.splitlines() if re.match(r'\{.*"prev":', line)
]
SCHEMA = OcsfJsonSchemaEmbedded(get_ocsf_schema(version=OCSF_VERSION))
VALIDATORS = {
    of: Draft202012Validator(
        SCHEMA.get_class_schema(
            class_name=SCHEMA.lookup_class_name_from_uid(class_uid=of), profiles=[]
        )
    )
    for of in OcsfClass
}
run = CliRunner().invoke


def test_every_event_has_a_place_in_ocsf_and_the_documented_one() -> None:
    assert set(KINDS) == set(Event)
    for event, kind in KINDS.items():
        row = rf"^\| `{event}` \| {kind.of.value} \| {kind.activity} \| {kind.severity} \|$"
        assert re.search(row, PAGE, re.MULTILINE), (event, kind)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: record.event)
def test_an_ocsf_event_is_valid_by_the_frameworks_own_schema(record: Record) -> None:
    event = json.loads(ocsf_event(record))
    VALIDATORS[OcsfClass(event["class_uid"])].validate(event)
    assert BaseEvent.model_validate(event).metadata.version == OCSF_VERSION


def test_the_schema_would_refuse_a_wrong_event() -> None:
    event = json.loads(ocsf_event(EXAMPLES[0]))
    for wrong in ({"activity_id": 4711}, {"class_uid": 1}, {"time": "now"}, {"extra": 1}):
        of = VALIDATORS[OcsfClass.DATASTORE_ACTIVITY]
        assert not of.is_valid({**event, **wrong})
    del event["actor"]
    assert not VALIDATORS[OcsfClass.DATASTORE_ACTIVITY].is_valid(event)


def test_an_ocsf_event_holds_the_records_own_line_and_a_unique_id() -> None:
    events = [json.loads(ocsf_event(record)) for record in EXAMPLES]
    assert [decode_record(event["raw_data"].encode()) for event in events] == EXAMPLES
    assert len({event["metadata"]["uid"] for event in events}) == len(EXAMPLES)
    assert {event["status_id"] for event in events if event["status_code"] != "ok"} == {2}


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40))
def test_no_csv_cell_is_a_formula_and_each_reads_back(text: str) -> None:
    line = csv_line([text, 7])
    (row,) = csv.reader(io.StringIO(line))
    assert row[1] == "7"
    assert row[0] == (f"'{text}" if text[:1] in ("=", "+", "-", "@") and text else text)
    assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_a_formula_in_a_reason_is_harmless_in_csv() -> None:
    record = decode_record(
        b'{"epoch":1,"event":"denied","log":"l","outcome":"denied","prev":"' + b"0" * 64 + b'",'
        b'"reason":"=HYPERLINK(\\"http://evil\\")","request_id":"@SUM(A1)","seq":0,'
        b'"ts":"2026-01-31T12:00:00.000000Z","v":1}'
    )
    header, line = export_lines([record], ExportFormat.CSV)
    (row,) = csv.DictReader(io.StringIO(header + line))
    assert row["reason"] == '\'=HYPERLINK("http://evil")'
    assert row["request_id"] == "'@SUM(A1)"


def test_csv_has_one_column_for_every_field_and_every_value() -> None:
    assert sorted(CSV_COLUMNS) == sorted(Record.__struct_fields__)
    text = "".join(export_lines(EXAMPLES, ExportFormat.CSV))
    for row, record in zip(csv.DictReader(io.StringIO(text)), EXAMPLES, strict=True):
        assert row == {name: str(getattr(record, name)) for name in CSV_COLUMNS}


@pytest.mark.parametrize("text", ["2026-1-1", "yesterday", "2026-01-31 12:00", "2026-01-31T", "Z"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AuditError, match="not a time"):
        parse_moment(text)


def test_a_selection_takes_from_the_first_moment_up_to_the_last() -> None:
    times = Selection(parse_moment("2026-01-31T12:00:03Z"), parse_moment("2026-01-31T12:00:05"))
    assert [r.seq for r in EXAMPLES if times.takes(r)] == [3, 4]
    events = Selection(events=frozenset({Event.SEALED, Event.GAP}))
    assert [r.event for r in EXAMPLES if events.takes(r)] == [Event.SEALED, Event.GAP]


def test_export_writes_all_or_a_part_to_a_file_or_standard_output(tmp_path: Path) -> None:
    world = honest(tmp_path)
    folder = ["--folder", str(world.folder)]
    whole = run(app, ["export", *folder])
    assert whole.output.encode().splitlines() == world.lines()
    out = tmp_path / "part.jsonl"
    result = run(app, ["export", "--event", "log_opened", "--out", str(out), *folder])
    assert result.exit_code == 0
    assert out.read_bytes() == world.lines()[0] + b"\n"
    assert out.stat().st_mode & 0o777 == 0o600
    ocsf = run(app, ["export", "--format", "ocsf", *folder]).output.splitlines()
    assert [json.loads(line)["metadata"]["sequence"] for line in ocsf] == list(range(62))
    rows = run(app, ["export", "--format", "csv", "--from", "2030", *folder]).output.splitlines()
    assert rows == [",".join(CSV_COLUMNS)]


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    world = honest(tmp_path)
    out = tmp_path / "missing" / "file"
    result = run(app, ["export", "--out", str(out), "--folder", str(world.folder)])
    assert isinstance(result.exception, AuditError)
    path = world.segments()[-1]
    path.write_bytes(path.read_bytes() + b"garbage\n")
    out = tmp_path / "out"
    result = run(app, ["export", "--out", str(out), "--folder", str(world.folder)])
    assert isinstance(result.exception, AuditError)
    assert f"{path.name}, where record 62 should be" in result.exception.message
    assert not out.exists()


def test_an_export_says_which_records_are_no_longer_there(tmp_path: Path) -> None:
    world = honest(tmp_path)
    gone = len(world.segments()[0].read_bytes().splitlines())
    world.segments()[0].unlink()
    result = run(app, ["export", "--folder", str(world.folder)])
    assert result.stdout.encode().splitlines() == world.lines()
    assert f"records 0 to {gone - 1} are no longer in" in result.stderr
