"""Which llama.cpp is taken: an old llama-server, or what is none, is refused before a start."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvrun.launch.engines as engines
from kvrun.cli.main import app
from kvrun.config import load_config
from kvrun.engines.llama_cpp.arguments import ISOLATION, STATES
from kvrun.engines.llama_cpp.installed import MINIMUM_BUILD, require_llama_cpp
from kvrun.engines.vllm.installed import EngineMissingError, InstalledEngine

HELP = " ".join(f"-x, {name} N  what it does\n" for name in (*ISOLATION, *STATES))


def program(folder: Path, says: str, helps: str = HELP) -> Path:
    """A program that answers --version and --help as llama-server does."""
    file = folder / "llama-server"
    file.write_text(
        f"#!/bin/sh\nif [ $1 = --version ]; then cat >&2 <<END\n{says}\nEND\n"
        f"else cat <<END\n{helps}\nEND\nfi\n"
    )
    file.chmod(0o700)
    return file


@pytest.mark.parametrize(
    "version",
    [
        f"{MINIMUM_BUILD} (0a1b2c3)",
        f"{MINIMUM_BUILD + 1000} (0a1b2c3)",
        f"0.1.0 (build {MINIMUM_BUILD}, commit 7e4c0a9)",
        # Made without llama.cpp's history: only its options tell.
        "0.1.0-dev (build 1, commit 7e4c0a9)",
        "0 (unknown)",
    ],
)
def test_a_server_that_is_new_enough_is_known_by_what_it_says(tmp_path: Path, version: str) -> None:
    binary = program(tmp_path, f"ggml: loaded CPU\nversion: {version}\nbuilt with cc")
    found = require_llama_cpp(binary)
    assert (found.distribution, found.version) == ("llama-server", version)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (f"version: {MINIMUM_BUILD - 1} (0a1b2c3)", f"{MINIMUM_BUILD} and later"),
        ("version: 0.0.1 (build 4000, commit 7e4c0a9)", f"{MINIMUM_BUILD} and later"),
        ("nginx version: nginx/1.22", "as a llama-server does"),
        ("version: 1.2.3", "as a llama-server does"),
        ("", "as a llama-server does"),
        (f"version: {'9' * 40} (x)", "as a llama-server does"),
    ],
)
def test_an_old_one_and_another_program_are_refused(tmp_path: Path, says: str, told: str) -> None:
    with pytest.raises(EngineMissingError, match=told) as refused:
        require_llama_cpp(program(tmp_path, says))
    assert "engine.llama_server" in refused.value.message


@pytest.mark.parametrize("option", [name for name in ISOLATION if name.startswith("--")])
def test_one_that_lacks_what_keeps_requests_apart_is_refused(tmp_path: Path, option: str) -> None:
    lacks = program(tmp_path, "version: 0 (unknown)", HELP.replace(f"{option} ", f"{option}-not "))
    with pytest.raises(EngineMissingError, match=f"has no {option},"):
        require_llama_cpp(lacks)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2026.9.11400", r"2026\.9\.11400 is installed; kvrun works with 2026\.10 and later"),
        ("0.1.0", r"2026\.10 and later"),
        ("unknown", r"2026\.10 and later"),
        (None, "no llama.cpp is installed"),
    ],
)
def test_an_old_xllamacpp_or_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str | None, told: str
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(EngineMissingError, match=told) as refused:
        require_llama_cpp()
    assert "pip install" in (refused.value.hint or "")


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable", "no program"])
def test_what_cannot_be_run_is_refused(tmp_path: Path, kind: str) -> None:
    binary = tmp_path / "server"
    if kind == "folder":
        binary.mkdir()
    elif kind != "missing":
        binary.write_bytes(b"\x7fELF no program")
        binary.chmod(0o600 if kind == "not executable" else 0o700)
    with pytest.raises(EngineMissingError, match=r"engine\.llama_server"):
        require_llama_cpp(binary)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"vllm", "llama.cpp"}, "vllm"),
        ({"vllm"}, "vllm"),
        ({"llama.cpp"}, "llama.cpp"),
        (set(), "vllm"),
    ],
)
def test_where_nobody_chose_an_engine_one_that_is_there_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: set[str], taken: str
) -> None:
    def installed(kind: str) -> InstalledEngine:
        if kind not in there:
            raise EngineMissingError(f"no {kind}")
        return InstalledEngine(kind, "1", cpu=True)

    monkeypatch.setattr(engines, "installed_engine", installed)
    assert engines.usual_engine("vllm", "llama.cpp") == taken
    done = CliRunner().invoke(app, ["init", str(tmp_path / "chat"), "--witness", "none"])
    assert done.exit_code == 0, done.output
    assert load_config(tmp_path / "chat" / "kvrun.toml", {}).engine.kind == taken
