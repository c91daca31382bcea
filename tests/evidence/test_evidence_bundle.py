"""A bundle holds what is of its period, verifies anywhere, and is the same when made again."""

from __future__ import annotations

import csv
import io
import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from evidence_world import JANUARY, World, quarter
from typer.testing import CliRunner

from kvrun.audit.verdict import Verdict
from kvrun.cli.main import app
from kvrun.config.storage import StorageSection
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.check import check_bundle
from kvrun.evidence.controls import State
from kvrun.evidence.errors import EvidenceError
from kvrun.evidence.export import Request, Step, export_bundle
from kvrun.evidence.live import live_controls
from kvrun.evidence.period import parse_period
from kvrun.evidence.populations import COLUMNS, Population
from kvrun.evidence.report import BundleCheck, BundleReport
from kvrun.keys.signing import KeyPurpose, SigningRing
from support.s3_server import OPTIONS

NOW = 1_775_000_000.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return quarter(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    return world.export("january.zip")


@pytest.fixture(scope="module")
def whole(world: World) -> Path:
    return world.export("whole.zip", Request(JANUARY, sample=5, full=True))


def check(world: World, path: Path, *, trusted: bool = True) -> BundleReport:
    return check_bundle(path, anchor=world.anchor if trusted else None, now=NOW)


def said(report: BundleReport) -> str:
    return "\n".join(f"{item.check} {item.verdict} {item.detail}" for item in report.results)


def rows(path: Path, population: Population) -> list[dict[str, str]]:
    with zipfile.ZipFile(path) as archive:
        text = archive.read(population.file).decode()
    return list(csv.DictReader(io.StringIO(text)))


def read_json(path: Path, name: str) -> dict[str, object]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, object] = json.loads(archive.read(name))
    return found


def test_it_verifies_under_the_anchor_and_without_it_says_who_vouches(
    world: World, bundle: Path, whole: Path
) -> None:
    for path in (bundle, whole):
        report = check(world, path)
        assert report.exit_code == 0, said(report)
        assert [item.check for item in report.results][:3] == ["container", "manifest", "files"]
        alone = check(world, path, trusted=False)
        assert alone.exit_code == 2, said(alone)
        assert alone.of(BundleCheck.SIGNER).verdict is Verdict.UNKNOWN
        assert "self-asserted" in alone.of(BundleCheck.SIGNER).detail


def test_another_operators_anchor_does_not_vouch_for_it(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    other = World(tmp_path / "other")
    other.day("2026-01-02")
    other.collect()
    report = check_bundle(bundle, anchor=other.anchor, now=NOW)
    assert report.exit_code == 1
    assert {BundleCheck.SIGNER, BundleCheck.LOGS, BundleCheck.CERTIFICATES} <= {
        item.check for item in report.failed
    }


def test_a_revoked_evidence_key_no_longer_counts(tmp_path: Path) -> None:
    world = quarter(tmp_path)
    path = world.export("bundle.zip")
    assert check(world, path).exit_code == 0
    ring = SigningRing(world.scope.home_layout.control / "signing", now=world.clock)
    (key,) = ring.all_keys(KeyPurpose.EVIDENCE)
    ring.revoke(key.key_id)
    assert "revoked" in check(world, path).of(BundleCheck.SIGNER).detail
    assert check(world, path).exit_code == 1


def test_evidence_keys_are_replaced_and_revoked_by_command(tmp_path: Path) -> None:
    world = quarter(tmp_path)
    first = world.export("first.zip")
    config = str(world.file)
    world.clock.time = time.time() + 10  # the command has the machine's
    made = CliRunner().invoke(app, ["keys", "rotate", "evidence", "-c", config, "--json"])
    assert made.exit_code == 0, made.output
    own, of_bundles = json.loads(made.stdout)["id"].split(", ")
    second = world.export("second.zip")
    for path in (first, second):
        assert check(world, path).exit_code == 0, said(check(world, path))
    assert of_bundles in check(world, second).of(BundleCheck.SIGNER).detail
    listed = CliRunner().invoke(app, ["keys", "list", "-c", config, "--json"])
    states = {
        entry["id"]: (entry["state"], entry["note"])
        for entry in json.loads(listed.stdout)
        if entry["kind"] == "evidence"
    }
    assert states[own] == ("in use", "")
    assert states[of_bundles] == ("in use", "the control plane's, of bundles")
    assert sorted(state for state, _ in states.values()) == ["in use"] * 2 + ["verifies"] * 2
    gone = CliRunner().invoke(app, ["keys", "revoke", of_bundles, "-c", config, "--json"])
    assert json.loads(gone.stdout)["state"] == "revoked"
    assert "revoked" in check(world, second).of(BundleCheck.SIGNER).detail
    assert check(world, first).exit_code == 0
    assert check(world, world.export("third.zip")).exit_code == 0


def test_two_exports_of_a_closed_period_are_the_same_bytes(world: World, bundle: Path) -> None:
    world.day("2026-03-02")
    world.collect()
    again = world.export("again.zip")
    assert again.read_bytes() == bundle.read_bytes()


def test_it_goes_on_where_it_was_stopped(world: World, bundle: Path) -> None:
    done: list[str] = []

    def stop(step: Step) -> None:
        done.append(step.what)
        if step.what.startswith("sample"):
            raise KeyboardInterrupt

    path = world.root / "stopped.zip"
    request = Request(JANUARY, sample=5)
    with pytest.raises(KeyboardInterrupt):
        export_bundle(world.scope, request, path, now=world.clock, on_step=stop)
    parts = path.with_name("stopped.zip.parts")
    noted = next((parts / "parts").glob("a-*.json"))
    before = noted.stat().st_mtime_ns
    seen: list[int] = []
    export_bundle(
        world.scope,
        request,
        path,
        now=world.clock,
        on_step=lambda _: seen.append(noted.stat().st_mtime_ns if noted.exists() else before),
    )
    assert set(seen) == {before}
    assert path.read_bytes() == bundle.read_bytes()
    assert not parts.exists()


def test_parts_of_another_request_are_not_taken_for_this_ones(world: World, bundle: Path) -> None:
    path = world.root / "other.zip"

    def stop(step: Step) -> None:
        if step.what.startswith("lists"):
            raise KeyboardInterrupt

    whole = Request(JANUARY, sample=9, full=True)
    with pytest.raises(KeyboardInterrupt):
        export_bundle(world.scope, whole, path, now=world.clock, on_step=stop)
    export_bundle(world.scope, Request(JANUARY, sample=5), path, now=world.clock)
    assert path.read_bytes() == bundle.read_bytes()


def test_what_is_there_already_is_not_replaced(world: World, bundle: Path) -> None:
    with pytest.raises(EvidenceError, match="there already"):
        world.export(bundle.name)


def test_the_lists_have_their_columns_and_the_rows_of_the_period(
    world: World, bundle: Path
) -> None:
    for population in Population:
        with zipfile.ZipFile(bundle) as archive:
            first = archive.read(population.file).decode().split("\r\n", 1)[0]
        assert first == ",".join(COLUMNS[population])
    first, second = rows(bundle, Population.ERASURE_REQUESTS)
    assert first["certificate_id"] == "er-1"
    assert first["requested_at"] < first["completed_at"] < first["certified_at"]
    assert first["document"] == "erasure-certificate"
    assert second["request_id"] == "er-2"
    assert (second["completed_at"], second["certified_at"], second["certificate_id"]) == (
        "",
        "",
        "",
    )
    whats = [(item["event"], item["what"]) for item in rows(bundle, Population.ACCESS_CHANGES)]
    assert ("whois", "ticket 7 by uid 0") in whats
    assert any("developer -> admin" in what for _, what in whats)
    assert not any("another workspace" in what for _, what in whats)
    assert not any(event == "signed_in" for event, _ in whats)
    (rotation,) = rows(bundle, Population.KEY_ROTATIONS)
    assert rotation["at"].startswith("2026-01-12")
    assert (rotation["key_id"], rotation["what"]) == ("22" * 16, "epoch 3")
    settled, waiting = rows(bundle, Population.ALERTS)
    assert settled["reason"] == "counted by hand"
    assert (waiting["acknowledged_at"], waiting["reason"]) == ("", "")
    (policy,) = rows(bundle, Population.POLICY_REVISIONS)
    assert policy["policy_revision"] == world.revisions[0]
    (deployment,) = rows(bundle, Population.DEPLOYMENTS)
    assert (deployment["id"], deployment["name"]) == ("d-1", "chat")
    assert "bad_tag" in {item["what"] for item in rows(bundle, Population.INCIDENTS)}


def test_counts_are_of_the_period_to_the_day(bundle: Path) -> None:
    counted = rows(bundle, Population.LOG_EVENTS)
    sealed = [item for item in counted if item["event"] == "sealed"]
    assert {item["day"] for item in sealed} == {"2026-01-01", "2026-01-12", "2026-01-31"}
    assert sum(int(item["records"]) for item in sealed) == 18
    assert {item["policy_revision"] for item in sealed} == {"builtin-1"}


def test_a_control_is_present_by_what_was_counted_and_never_without(
    world: World, bundle: Path
) -> None:
    found = read_json(bundle, "controls.json")
    states = {
        (item["framework"], item["requirement"]): item["state"]
        for item in found["controls"]  # type: ignore[attr-defined]
    }
    assert states == {
        ("UK GDPR", "Art. 17"): "present",
        ("UK GDPR", "Art. 25"): "present",
        ("SOC 2", "CC6.1"): "present",
        ("SOC 2", "CC7.2"): "present",
        ("ISO 27001", "Secure disposal"): "present",
        ("EU AI Act", "Evaluation records"): "none_in_period",
    }
    assert "remains between you and your auditor" in str(found["statement"])
    empty = world.export("empty.zip", Request(parse_period("2025-01-01", "2025-02-01")))
    none = read_json(empty, "controls.json")
    assert {item["state"] for item in none["controls"]} == {"none_in_period"}  # type: ignore[attr-defined]
    with zipfile.ZipFile(empty) as archive:
        page = archive.read("index.html").decode()
    assert page.count('<span class="state none">no evidence in the period</span>') == 6
    assert 'class="state present"' not in page
    report = check(world, empty)
    assert report.exit_code == 0, said(report)


@pytest.mark.parametrize("full", [False, True])
def test_the_command_of_each_control_does_check_it(
    world: World, bundle: Path, whole: Path, tmp_path: Path, full: bool
) -> None:
    with zipfile.ZipFile(whole if full else bundle) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "evidence.zip").write_bytes((whole if full else bundle).read_bytes())
    (tmp_path / "anchor.json").write_bytes(scope_anchor(world.scope))
    for item in read_json(tmp_path / "evidence.zip", "controls.json")["controls"]:  # type: ignore[attr-defined]
        _, command, name, *options = item["command"].split()
        pattern = name
        for placeholder in ("DEPLOYMENT", "CERTIFICATE", "LOG"):
            pattern = pattern.replace(placeholder, "*")
        found = list(tmp_path.glob(pattern))
        assert found, f"{item['id']}: there is no {pattern}"
        options[-1] = str(tmp_path / options[-1])
        for path in found:
            done = CliRunner().invoke(app, [command, str(path), *options])
            assert done.exit_code == 0, (item["id"], done.output)


def test_self_tests_and_evaluations_of_the_period_are_in_it_signed(
    world: World, bundle: Path
) -> None:
    with zipfile.ZipFile(bundle) as archive:
        (test,) = (name for name in archive.namelist() if name.startswith("isolation/"))
        assert not [name for name in archive.namelist() if name.startswith("finetunes/")]
    assert test.startswith("isolation/d-1/")
    assert check(world, bundle).of(BundleCheck.RESULTS).detail.startswith("1 ")
    february = world.export("february.zip", Request(parse_period("2026-02-01", "2026-03-01")))
    with zipfile.ZipFile(february) as archive:
        assert "finetunes/ft-tuned/evaluation.json" in archive.namelist()
    found = read_json(february, "controls.json")["controls"]
    (entry,) = (item for item in found if item["framework"] == "EU AI Act")  # type: ignore[attr-defined]
    assert (entry["state"], entry["counted"]) == ("present", {"evaluations": 1})
    report = check(world, february)
    assert report.exit_code == 0, said(report)
    assert check(world, february, trusted=False).exit_code == 2


def test_a_page_counts_the_evaluations_that_a_bundle_would_have(world: World) -> None:
    february = parse_period("2026-02-01", "2026-03-01")
    assert live_controls(world.scope, february).totals.evaluations == 1
    assert live_controls(world.scope, JANUARY).totals.evaluations == 0


def test_a_page_counts_the_self_tests_that_a_bundle_would_have(world: World) -> None:
    for period in (JANUARY, parse_period("2026-02-01", "2026-03-01")):
        assert live_controls(world.scope, period).totals.isolation_tests == 1


@pytest.mark.parametrize("away", ["a folder that cannot be one", "a store that refuses"])
def test_without_storage_what_it_holds_is_not_known_and_the_rest_stands(
    world: World, tmp_path: Path, away: str
) -> None:
    usual = {item.id: item for item in live_controls(world.scope, JANUARY).controls}
    (site,) = world.scope.sites
    (tmp_path / "file").write_bytes(b"")
    storage = (
        StorageSection(url=f"file://{tmp_path}/file")
        if away.startswith("a folder")
        else StorageSection(
            url="s3://bucket", options={**OPTIONS, "endpoint": "http://127.0.0.1:1"}
        )
    )
    lost = replace(site, config=site.config.model_copy(update={"storage": storage}))
    # One deployment that can be read does not make the workspace's controls known.
    found = live_controls(replace(world.scope, sites=(site, lost)), JANUARY).controls
    states = {item.id: item.state for item in found}
    assert states.pop("uk-gdpr-art-17") is State.UNKNOWN
    assert states.pop("soc-2-cc61") is State.UNKNOWN, "other counts do not make it green"
    assert states == {name: usual[name].state for name in states}
    assert {State.PRESENT, State.NONE} == set(states.values())
    counts = {item.id: item.counted for item in found}
    assert counts["uk-gdpr-art-17"] == {}, "nothing is counted, which is not none"
    assert "isolation_tests" not in counts["soc-2-cc61"]


def test_the_page_says_what_came_of_each_result(world: World, bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        page = archive.read("index.html").decode()
    assert "isolation self-test: pass" in page
    february = world.root / "february-page.zip"
    export_bundle(
        world.scope,
        Request(parse_period("2026-02-01", "2026-03-01"), sample=0),
        february,
        now=world.clock,
    )
    with zipfile.ZipFile(february) as archive:
        page = archive.read("index.html").decode()
    assert "loss 1.500 before and 1.500 after" in page


def test_the_sample_is_what_the_seed_draws(world: World, bundle: Path) -> None:
    other = world.export("seed.zip", Request(JANUARY, sample=5, seed="2"))
    drawn = []
    for path in (bundle, other):
        with zipfile.ZipFile(path) as archive:
            (name,) = (item for item in archive.namelist() if item.endswith("sample.jsonl"))
            drawn.append([json.loads(line)["index"] for line in archive.read(name).splitlines()])
    assert len(drawn[0]) == len(drawn[1]) == 5
    assert drawn[0] != drawn[1]
    assert check(world, other).exit_code == 0
    everything = world.export("all.zip", Request(JANUARY, sample=100_000))
    report = check(world, everything)
    assert report.exit_code == 0, said(report)


def test_with_the_segments_counts_and_lists_are_made_again(world: World, whole: Path) -> None:
    report = check(world, whole)
    assert "counted again" in report.of(BundleCheck.SEGMENTS).detail
    with zipfile.ZipFile(whole) as archive:
        names = [name for name in archive.namelist() if name.endswith("0.jsonl")]
        assert names
        folder = world.root / "unpacked"
        archive.extractall(folder)
    anchor = world.root / "anchor.json"
    with zipfile.ZipFile(whole) as archive:
        anchor.write_bytes(archive.read("keys/trust-anchor.json"))
    done = CliRunner().invoke(
        app, ["verify", str((folder / names[0]).parent), "--trust", str(anchor)]
    )
    assert done.exit_code == 0, done.output


def test_an_open_period_says_so_and_verifies(world: World) -> None:
    spring = parse_period("2026-02-15", "2026-06-01")
    for full in (False, True):
        path = world.export(f"open-{full}.zip", Request(spring, sample=3, full=full))
        report = check(world, path)
        assert report.exit_code == 0, said(report)
        with zipfile.ZipFile(path) as archive:
            assert b"later records of the period are not here" in archive.read("index.html")


@pytest.mark.parametrize(
    ("since", "until"), [("2026-01-02", "2026-01-02"), ("2026-1-1", "2026-02-01"), ("x", "y")]
)
def test_a_period_is_of_whole_days(since: str, until: str) -> None:
    with pytest.raises(EvidenceError):
        parse_period(since, until)


@pytest.mark.parametrize("seed", ["x" * 101, "naïve", "two\nlines"])
def test_a_seed_is_short_plain_text(seed: str) -> None:
    with pytest.raises(EvidenceError):
        Request(JANUARY, seed=seed)
