"""``kvrun bench console`` on a small scale: every page answers, and each has the goal beside it."""

from kvrun.bench.console import GOAL_MS, ConsoleBenchSettings, run_console_bench


def test_every_page_is_measured_with_what_is_behind_it() -> None:
    said: list[str] = []
    report = run_console_bench(
        ConsoleBenchSettings(deployments=2, tenants=9, records=1000, rounds=1), said.append
    )
    rows = {row.metric: row for row in report.rows}
    assert {"page deployments", "page deployment", "page deployment, users",
            "page deployment, audit", "page deployment, cache", "page members",
            "API list_records", "API where_is"} <= set(rows)  # fmt: skip
    assert not [row for row in report.rows if row.value is None]
    assert {row.goal for row in report.rows} == {f"<= {GOAL_MS}"}
    assert said
