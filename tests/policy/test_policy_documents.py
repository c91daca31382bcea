"""A policy document is read in full or refused, with file, line and column of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import EU, US, revision

from kvrun.policy.document import schema_text
from kvrun.policy.errors import PolicyRejectedError, Problem
from kvrun.policy.revision import MAX_RULES, parse_revision
from kvrun.policy.source import MAX_FILE_BYTES, plain, read_documents

SCHEMA = Path(__file__).parents[2] / "docs" / "spec" / "residency-policy.schema.json"


def _problems(*texts: str) -> list[str]:
    with pytest.raises(PolicyRejectedError) as refused:
        revision(*texts)
    return [str(problem) for problem in refused.value.problems]


def test_documents_are_read_in_the_order_of_files_and_lines() -> None:
    rules = revision(EU + "---\n" + US).rules
    assert [rule.name for rule in rules] == ["eu", "us"]
    assert [rule.where for rule in rules] == ["policies/p0.yaml:1", "policies/p0.yaml:24"]
    assert rules[0].policy.allow.ttl == 7 * 86_400


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("tiers: [gpu, memory]", "tiers: [gpu, ram]"), "p0.yaml:8:16: allow.tiers.1"),
        (("kind: ResidencyPolicy", "kind: Policy"), "p0.yaml:2:1: kind"),
        (("  regions:", "  region:"), "p0.yaml:9:3: allow.region is not known here"),
        (("name: us", "name: US East"), "p0.yaml:4:3: metadata.name"),
        (("classes: [us]", 'classes: ["u*s"]'), "p0.yaml:6:13: match.classes.0: a star may stand"),
        (("classes: [us]", "classes: us"), "p0.yaml:6:3: match.classes"),
        (("[gpu, memory]", "[gpu, memory]\n  ttl: 7w"), "p0.yaml:9:3: allow.ttl: a duration is"),
        (("allow:", "allow:\nallow:"), "p0.yaml:8:1: the key 'allow' appears twice"),
        (("name: us", "name: &a us"), "p0.yaml:4:9: anchors and aliases"),
        (("name: us", "name: !!python/object:os.system us"), "p0.yaml:4:9: the tag"),
        (("[us]", "[us"), "p0.yaml:7:"),
        (("allow:", "when: workspace\nallow:"), "p0.yaml:7:7: when: it gives str"),
        (("allow:", "when: 1 +\nallow:"), "p0.yaml:7:7: when: this is no CEL"),
        (("allow:", "when: user == 'x'\nallow:"), "p0.yaml:7:7: when: Undefined variable"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: tuple[str, str], problem: str) -> None:
    found = _problems(US.replace(*change, 1))
    assert any(f"{problem}" in line for line in found), found
    assert all(line.startswith("policies/p0.yaml:") for line in found)


def test_every_problem_of_every_file_is_named_at_once() -> None:
    found = _problems(EU.replace("name: eu", "name: E U"), US.replace("gpu", "gpus"))
    assert [line.split(":")[0] for line in found] == ["policies/p0.yaml", "policies/p1.yaml"]


def test_a_name_can_be_used_once() -> None:
    assert _problems(US, US) == ["policies/p1.yaml:1:1: the name us is taken by policies/p0.yaml:1"]


def test_scalars_stay_text() -> None:
    (node,) = read_documents(b"a: no\nb: 1.0\nc: 2026-01-31\nd: ~\ne: ''\n", "f.yaml")
    assert plain(node) == {"a": "no", "b": "1.0", "c": "2026-01-31", "d": None, "e": ""}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a: " + b"x" * MAX_FILE_BYTES, "may have 1048576"),
        (b"a: &x [l]\nb: [*x, *x]\n", "f.yaml:1:4: anchors and aliases"),
        (b"[" * 500, "nested more than"),
        (b"[" * 5000, "nesting"),
        (b"{a: " * 500, "nested more than"),
        (b"- x\n" * 120_000, "more than 100000 values"),
        (b"a: \xff\xfe", "f.yaml:1:1: this is not UTF-8"),
        (b"a: \x00", "f.yaml:1:"),
        (b"? [a]\n: b\n", "f.yaml:1:3: a key must be text"),
        (b"a: b\n---\n...\n%YAML 9.9\n", "f.yaml:"),
    ],
)
def test_bombs_are_refused_before_anything_is_built(data: bytes, problem: str) -> None:
    with pytest.raises(PolicyRejectedError) as refused:
        read_documents(data, "f.yaml")
    assert problem in str(refused.value)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    found: tuple[Problem, ...] = ()
    try:
        parse_revision({"p.yaml": data}, "fuzz")
    except PolicyRejectedError as refused:
        found = refused.problems
    assert all(p.file == "p.yaml" and p.line >= 1 and p.column >= 1 for p in found)


def test_a_revision_may_have_so_many_documents() -> None:
    text = "---\n".join(US.replace("name: us", f"name: us-{n}") for n in range(MAX_RULES + 1))
    assert f"more than {MAX_RULES} documents" in _problems(text)[0]


def test_the_published_schema_is_the_one_of_the_code() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "write it again: make pages"


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not() -> None:
    schema = json.loads(schema_text())
    (good,) = (plain(node) for node in read_documents(EU.encode(), "f"))
    jsonschema.validate(good, schema)
    for change in (("eu", "E U"), ("7d", "7 weeks"), ("[gpu", "[ram"), ("reason", "because")):
        (bad,) = (plain(node) for node in read_documents(EU.replace(*change).encode(), "f"))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
