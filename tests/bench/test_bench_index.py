"""``kvrun bench index`` and ``kvrun bench restore`` run small and report their goals."""

import json

import pytest
import typer
from typer.testing import CliRunner

import kvrun.cli.bench
from kvrun.bench.disk_read import disk_reader
from kvrun.errors import KvrunError


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
    rows = ask("restore", "--blocks", "4", "--block-kib", "512", "--pairs", "7")
    ratios = [row for row in rows if row["goal"]]
    assert [row["goal"] for row in ratios] == [">= 0.7", ">= 0.8"]
    assert [("disk" in row["metric"], "get_range" in row["against"]) for row in ratios] == [
        (True, False),
        (False, True),
    ]
    assert all(row["value"] is None or row["value"] > 0 for row in rows)


def test_fio_is_asked_for_what_the_disk_gives_where_it_is_installed(tmp_path, monkeypatch):
    tool = tmp_path / "fio"
    tool.write_text(
        """#!/bin/sh\necho "$@" > "$0.asked"\necho '{"jobs":[{"read":{"bw_bytes":7}}]}'\n"""
    )
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    read, what = disk_reader(tmp_path / "file")
    assert (read(), what.split()[0]) == (7, "fio")
    asked = (tmp_path / "fio.asked").read_text().split()
    assert {f"--filename={tmp_path}/file", "--rw=read", "--direct=1", "--readonly"} <= set(asked)
    tool.write_text("#!/bin/sh\necho no such engine >&2; exit 1\n")
    with pytest.raises(KvrunError, match="no such engine"):
        read()
    monkeypatch.setenv("PATH", "")
    (tmp_path / "file").write_bytes(bytes(1000))
    read, what = disk_reader(tmp_path / "file")
    assert read() > 0
    assert "fio is not installed" in what
