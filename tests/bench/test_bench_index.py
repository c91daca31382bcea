"""``kvrun bench index`` and ``kvrun bench restore`` run small and report their goals."""

import json

import typer
from typer.testing import CliRunner

import kvrun.cli.bench


def ask(*arguments: str) -> list[dict]:
    app = typer.Typer()
    app.add_typer(kvrun.cli.bench.app, name="bench")
    done = CliRunner().invoke(app, ["bench", *arguments, "--json"])
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)["rows"]


def test_a_small_index_is_measured_in_memory_and_time():
    rows = ask("index", "--blocks", "1000", "--blocks", "4000", "--files", "500")
    assert [(row["unit"], row["goal"]) for row in rows] == [
        ("bytes a block", "<= 250"),
        ("a second", ">= 200000"),
        ("a second", ">= 200000"),
        ("x", "<= 2"),
        ("GB", None),
        ("s", None),
        ("s", None),
    ]
    assert all(row["value"] > 0 for row in rows if row["unit"] != "GB")


def test_a_small_session_is_restored_and_compared():
    rows = ask("restore", "--blocks", "4", "--block-kib", "64", "--pairs", "7")
    assert rows[-1]["goal"] == ">= 0.7"
    assert rows[-1]["value"] is None or rows[-1]["value"] > 0
