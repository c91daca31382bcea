"""The page that says how each operation is done by command and in the console is whole and true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer.main

from kvrun.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
WITHOUT = {
    "sign_in_methods", "claim_owner_link", "start_oidc", "finish_oidc", "healthz", "readyz",
    "announce_policy_push",
}  # fmt: skip
"""Signing in, health, and what a Git host calls."""


def rows() -> list[tuple[list[str], list[str]]]:
    part = PAGE.partition("## The same by command")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:4] for line in part.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`(\w+)`", a), re.findall(r"`kvrun ([^`]+)`", b)) for a, b, _ in lines]


def test_every_operation_has_a_row() -> None:
    document: dict[str, Any] = json.loads((DOCS / "openapi.json").read_text())
    operations = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    listed = [name for names, _ in rows() for name in names]
    assert sorted(listed) == sorted(operations - WITHOUT)


def test_every_command_of_it_is_there() -> None:
    root = typer.main.get_command(app)
    for _, commands in rows():
        for command in commands:
            found: Any = root
            for word in command.split():
                assert word in found.commands, command
                found = found.commands[word]
