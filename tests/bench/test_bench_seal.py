"""``kvrun bench seal`` runs, reports every goal, and ends with the right status."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

import kvrun.cli.bench
from kvrun.bench.machine import cpu_wait_s, describe_commit, describe_machine, separate_cpus
from kvrun.bench.report import Report, Row
from kvrun.bench.seal import SealBenchSettings, run_seal_bench

SMALL = SealBenchSettings(block_bytes=32 << 10, ring_bytes=1 << 20, pairs=7, attempts=3)


def mounted() -> typer.Typer:
    app = typer.Typer()
    app.add_typer(kvrun.cli.bench.app, name="bench")
    return app


def test_a_small_run_reports_speeds_and_all_three_goals():
    report = run_seal_bench(SMALL)
    assert report.bench == "seal"
    assert [(row.unit, row.goal) for row in report.rows] == [
        ("GB/s", None),
        ("x", ">= 0.9"),
        ("GB/s", None),
        ("x", ">= 0.9"),
        ("x", ">= 1.7"),
        ("x", None),
    ]
    for row in report.rows:
        assert row.value is None or row.value > 0
        assert row.value is not None or re.search("no (verdict|figure)", row.against)
    assert report.rows[0].value is not None


@pytest.mark.parametrize(("met", "status"), [(True, 0), (None, 0), (False, 1)])
def test_the_command_fails_only_when_a_goal_was_missed(monkeypatch, met, status):
    row = Row(metric="m", value=1.0, unit="x", against="raw", goal=">= 1", met=met)
    asked: list[SealBenchSettings] = []

    def fake(settings: SealBenchSettings) -> Report:
        asked.append(settings)
        return Report(bench="seal", machine="m", commit="c", rows=(row,))

    monkeypatch.setattr(kvrun.cli.bench, "run_seal_bench", fake)
    done = CliRunner().invoke(mounted(), ["bench", "seal", "--json", "--block-kib", "256"])
    assert done.exit_code == status
    assert json.loads(done.stdout)["rows"][0]["met"] is met
    assert asked[0].block_bytes == 256 << 10


def test_fewer_pairs_than_a_verdict_needs_are_refused():
    assert CliRunner().invoke(mounted(), ["bench", "seal", "--pairs", "6"]).exit_code == 2


def test_machine_and_commit_are_named_on_one_line():
    assert "OpenSSL" in describe_machine()
    assert "\n" not in describe_machine() + describe_commit()
    assert describe_commit()


def test_the_cpus_for_pinned_threads_are_distinct_and_usable():
    cpus = separate_cpus()
    assert len(cpus) == len(set(cpus)) >= 1
    assert cpu_wait_s() >= 0
