"""A bundle's policies: real git takes them, their bytes follow from the objects alone."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from evidence_world import JANUARY, World, quarter
from hypothesis import given, settings
from hypothesis import strategies as st
from test_evidence_attacks import forged

from kvrun.audit.decisions import DecisionCount, Decisions, decision_of
from kvrun.audit.verdict import Verdict
from kvrun.evidence.check import check_bundle
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.export import Request
from kvrun.evidence.gitbundle import GitObject, missing_of, read_bundle, write_bundle
from kvrun.evidence.period import parse_period
from kvrun.evidence.policies import commits_of
from kvrun.evidence.populations import Population
from kvrun.evidence.report import BundleCheck, BundleReport
from kvrun.policy.setup import folder_of

NOW = 1_775_000_000.0
FOLDER = "deployments/d-1/policy"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return quarter(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    return world.export("january.zip", Request(JANUARY, sample=3, full=True))


def read(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def check(world: World, path: Path) -> BundleReport:
    return check_bundle(path, anchor=world.anchor, now=NOW)


def git(folder: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"
    }  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_git_verifies_and_clones_the_revision_of_the_period_and_no_later_one(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    first, second = world.revisions
    stated = json.loads(read(bundle, f"{FOLDER}/revisions.json"))
    assert (stated["held"], stated["missing"]) == ([first], [])
    (tmp_path / "held.bundle").write_bytes(read(bundle, f"{FOLDER}/repository.bundle"))
    git(tmp_path, "init", "--quiet", "--bare", "empty.git")
    said = git(tmp_path / "empty.git", "bundle", "verify", "../held.bundle")
    assert "complete history" in said
    git(tmp_path, "clone", "--quiet", "--mirror", "held.bundle", "cloned.git")
    cloned = tmp_path / "cloned.git"
    git(cloned, "fsck", "--strict")
    shown = git(cloned, "show", f"{first}:policies/eu.yaml")
    assert shown == (world.root / "policies" / "policies" / "eu.yaml").read_text()
    assert second not in git(cloned, "rev-list", "--all")
    report = check(world, bundle)
    assert report.exit_code == 0, report.failed
    assert report.of(BundleCheck.POLICIES).detail.startswith("1 revision(s)")


def test_it_is_the_same_however_the_clone_is_packed_and_whatever_came_later(
    world: World, bundle: Path
) -> None:
    clone = folder_of(world.config).repository
    git(clone, "gc", "--quiet", "--aggressive")
    assert world.export("packed.zip", Request(JANUARY, sample=3, full=True)).read_bytes() == (
        bundle.read_bytes()
    )
    both = world.export("both.zip", Request(parse_period("2026-01-01", "2026-03-01")))
    stated = json.loads(read(both, f"{FOLDER}/revisions.json"))
    assert stated["held"] == sorted(world.revisions)
    assert check(world, both).exit_code == 0


def test_a_revision_that_is_gone_is_named_and_not_passed_over(tmp_path: Path) -> None:
    world = quarter(tmp_path)
    shutil.rmtree(folder_of(world.config).repository)
    path = world.export("gone.zip")
    stated = json.loads(read(path, f"{FOLDER}/revisions.json"))
    assert stated["missing"] == [world.revisions[0]]
    assert stated["why"] == "the clone of the repository cannot be read", "no folder of ours"
    found = check(world, path).of(BundleCheck.POLICIES)
    assert (found.verdict, found.detail.split(",")[0]) == (Verdict.UNKNOWN, "0 revision(s) whole")


@pytest.mark.parametrize("case", ["other revisions", "left out", "a lost object", "one more ref"])
def test_what_an_operator_could_leave_out_or_swap_is_found(
    world: World, bundle: Path, tmp_path: Path, case: str
) -> None:
    stated, repository = f"{FOLDER}/revisions.json", f"{FOLDER}/repository.bundle"

    def change(files: dict[str, bytes]) -> None:
        refs, objects = read_bundle(files[repository])
        if case == "other revisions":
            files[stated] = files[stated].replace(world.revisions[0].encode(), b"0" * 40)
        elif case == "left out":
            del files[stated], files[repository]
        elif case == "a lost object":
            lost = next(name for name, item in objects.items() if item.kind == "blob")
            del objects[lost]
            kept = [objects[name] for name in sorted(objects)]
            files[repository] = b"".join(write_bundle(refs, kept, len(kept)))
        else:
            refs["refs/heads/main"] = world.revisions[0]
            whole = [objects[name] for name in sorted(objects)]
            files[repository] = b"".join(write_bundle(refs, whole, len(whole)))

    path = tmp_path / "forged.zip"
    path.write_bytes(forged(world, bundle, change))
    report = check(world, path)
    assert [item.check for item in report.failed] == [BundleCheck.POLICIES]
    assert report.failed[0].named[0].startswith(FOLDER)


def test_refusals_are_counted_by_rule_and_counted_again(world: World, bundle: Path) -> None:
    text = read(bundle, Population.POLICY_DECISIONS.file).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    shown = [(r["rule"], r["why"], r["outcome"], r["placements"], r["records"]) for r in rows]
    assert shown == [
        ("", "no_policy_matches", "ok", "2", "1"),
        ("", "no_record", "denied", "40", "1"),
        ("eu", "region_not_allowed", "denied", "4", "2"),
    ]
    assert {(r["day"], r["tier"], r["policy_revision"]) for r in rows} == {
        ("2026-01-12", "object", world.revisions[0])
    }

    def change(files: dict[str, bytes]) -> None:
        name = Population.POLICY_DECISIONS.file
        files[name] = files[name].replace(b"denied,4,2", b"denied,3,2")

    path = world.root / "counted.zip"
    path.write_bytes(forged(world, bundle, change))
    (failed,) = check(world, path).failed
    assert (failed.check, failed.named) == (
        BundleCheck.POPULATIONS, (Population.POLICY_DECISIONS.file,)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("residency: region_not_allowed eu", ("eu", "region_not_allowed", 1)),
        ("residency: region_not_allowed eu x7", ("eu", "region_not_allowed", 7)),
        ("residency: policy_too_old x7", ("", "policy_too_old", 7)),
        ("residency: 12 more placements have no record", ("", "no_record", 12)),
        ("residency: Something new", ("", "Something new", 1)),
        ("the claim expired", None),
    ],
)
def test_a_denials_text_tells_rule_and_number(
    reason: str, expected: tuple[str, str, int] | None
) -> None:
    found = decision_of("2026-01-01", "r", "disk", "denied", reason)
    assert (None if found is None else (found.rule, found.why, found.placements)) == expected


def test_sums_of_sums_are_the_sum() -> None:
    one = DecisionCount("2026-01-01", "r", "eu", "w", "disk", "denied", 3, 1)
    sums = Decisions()
    for _ in range(4):
        sums.add(one)
    again = Decisions()
    for item in (*sums.counts, one):
        again.add(item)
    assert [(item.placements, item.records) for item in again.counts] == [(15, 5)]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200_000), st.integers(0, 250_000), st.integers(0, 7))
def test_one_form_is_read_and_any_flipped_bit_is_refused(
    content: bytes, place: int, bit: int
) -> None:
    items = sorted((GitObject("blob", content), GitObject("blob", b"")), key=lambda one: one.id)
    items = list({one.id: one for one in items}.values())
    data = b"".join(write_bundle({"refs/x": items[0].id}, items, len(items)))
    refs, objects = read_bundle(data)
    assert [objects[name] for name in sorted(objects)] == items
    assert missing_of(refs.values(), objects) == set()
    changed = bytearray(data)
    changed[place % len(data)] ^= 1 << bit
    try:
        other_refs, others = read_bundle(bytes(changed))
    except BundleFormatError:
        return
    # Only the list of refs is not under the pack's checksum: another name, or another id.
    assert others == objects
    assert other_refs != refs


def test_only_commits_are_revisions_of_a_repository() -> None:
    assert commits_of(["builtin-1", "none", "", "A" * 40, "a" * 39, "b" * 40]) == ["b" * 40]
