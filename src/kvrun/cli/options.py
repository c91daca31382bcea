"""Options and output that several commands share."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvrun.cli.terminal import SafeConsole
from kvrun.config import KvrunConfig, load_config

WIDTH = 100

ConfigFile = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="KVRUN_CONFIG", help="The configuration file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
DEFAULT_CONFIG = Path("kvrun.toml")


def read_config(path: Path, overrides: Mapping[str, str] | None = None) -> KvrunConfig:
    """The configuration of ``path`` with the environment and ``overrides`` on top."""
    return load_config(path, {**os.environ, **(overrides or {})})


def console(*, stderr: bool = False) -> Console:
    """A console whose tables fit 100 columns.

    Text is shown as it is, in tables too: brackets in a name are no markup. What has a style is
    given as a rich ``Text``.
    """
    stream = sys.stderr if stderr else sys.stdout
    open_one = partial(SafeConsole, file=stream, highlight=False, markup=False, emoji=False)
    plain = open_one(soft_wrap=False)
    return plain if plain.width <= WIDTH else open_one(width=WIDTH)


def table(*columns: str, title: str | None = None) -> Table:
    """A table in kvrun's style."""
    result = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        result.add_column(column, overflow="fold")
    return result


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
