"""What others wrote reaches a terminal as something to read, and files as it is."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from kvrun import cli
from kvrun.cli.main import app
from kvrun.cli.options import console, table
from kvrun.cli.terminal import SafeConsole, harmless

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b1A\u202egnp.exe\rb\tc\nd"
SHOWN = "a]0;owned[2Jred1Agnp.exeb\tc\nd"


def test_control_characters_and_colours_go() -> None:
    assert harmless(HOSTILE) == SHOWN
    assert harmless("Grüße, 世界\r\nnext") == "Grüße, 世界\nnext"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    left = harmless(text)
    assert not {char for char in left if (char < " " or "\x7f" <= char < "\xa0")} - set("\t\n")
    assert harmless(left) == left


def test_a_console_keeps_its_own_styles_and_none_of_what_it_prints() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, width=60, color_system="standard")
    rows = Table("name", box=None)
    rows.add_row(Text("x\x1b[2Jy\x9bz", style="red"))
    console.print(rows)
    console.print("one\x1b[8mtwo", markup=False, highlight=False)
    printed = out.getvalue()
    assert "x[2Jyz" in printed
    assert "onetwo" in printed
    assert "\x1b[31m" in printed, "its own colour"
    assert not any(sequence in printed for sequence in ("\x1b[2J", "\x9b", "\x1b[8m"))


def test_a_name_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a[red]b[/oops] :key: \\[x]"
    rows = table("name", name, title=name)
    rows.add_row(name, Text("styled", "red"))
    console().print(rows)
    console().print(name)
    console(stderr=True).print(name)
    printed = capsys.readouterr()
    assert printed.out.count(name) == 4
    assert "styled" in printed.out
    assert printed.err == f"{name}\n"


def test_status_shows_a_folder_with_brackets(short_folder: Path) -> None:
    config = short_folder / "kvrun.toml"
    config.write_text(f'[instance]\ndata_dir = "{short_folder}/[/oops]"\n')
    shown = CliRunner().invoke(app, ["status", "-c", str(config)])
    assert (shown.exit_code, type(shown.exception)) == (1, SystemExit)
    assert f"{short_folder}/[/oops]" in shown.output


def test_no_command_writes_markup_which_would_be_shown() -> None:
    files = sorted(Path(cli.__file__).parent.glob("*.py"))
    assert len(files) > 50
    found = [file.name for file in files if re.search(r"\[/\]|rich\.markup", file.read_text())]
    assert found == []


_CHILD = f"""
import sys
from kvrun.cli.terminal import guard_terminal
guard_terminal()
sys.stdout.write({HOSTILE!r})
sys.stdout.writelines(["\\x1b[2J"])
print("\\x1b[2J", file=sys.stderr)
"""


def test_a_process_is_guarded_where_it_prints_to_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD], stdout=theirs, stderr=subprocess.PIPE, check=True
        )
        os.close(theirs)
        printed = os.read(ours, 4096).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
    assert printed == SHOWN + "[2J"
    assert child.stderr == b"\x1b[2J\n", "a pipe gets what was written"
