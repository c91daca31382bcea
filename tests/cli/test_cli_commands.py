"""The command line as a person or a script meets it."""

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvrun.cli.main import app
from kvrun.cli.options import WIDTH
from kvrun.config import load_config
from kvrun.gateway.apikeys import ApiKeys, load_api_keys

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


@dataclass
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> Done:
    clean: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("KVRUN_", "VLLM_"))
    }
    with contextlib.chdir(cwd or Path.cwd()):
        result = CliRunner().invoke(app, arguments, env={**clean, "COLUMNS": "100", **environ})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def run_process(*arguments: str, cwd: Path) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "kvrun", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield f"{prefix}{name}", command
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "chat"
    done = run("init", str(folder), "--model", "tiny", "--port", "8399")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_in_the_manual_and_its_help_has_an_example(name: str) -> None:
    assert f"## `kvrun {name}`" in PAGE.read_text(encoding="utf-8")
    command = ALL[name]
    assert command.help
    assert f"kvrun {name}" in command.help.replace("\n", " "), "its help shows no example"
    assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0


def test_the_manual_has_no_command_that_does_not_exist() -> None:
    documented = re.findall(r"^## `kvrun ([a-z -]+)`", PAGE.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(ALL)


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"kvrun \d+\.\d+\.\d+\S*\n", done.stdout)


def test_init_makes_a_deployment_whose_first_key_works_and_is_stored_as_a_hash(
    tmp_path: Path,
) -> None:
    done = run("init", str(tmp_path / "chat"), "--name", "chat")
    assert done.returncode == 0
    (key,) = re.findall(r"kvk_[A-Za-z0-9_-]{43}", done.stdout)
    config = load_config(tmp_path / "chat/kvrun.toml", {})
    assert config.deployment.name == "chat"
    assert ApiKeys(load_api_keys(config.layout.api_keys)).authenticate(key, 0).name == "first"
    for path in [config.instance.data_dir, *config.instance.data_dir.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600)
        assert path.is_dir() or key not in path.read_text()
    token = config.layout.owner_link.read_text().strip()
    assert len(token) == 43
    assert token not in done.stdout


def test_init_refuses_to_overwrite(deployment: Path) -> None:
    before = {p: p.read_bytes() for p in deployment.rglob("*") if p.is_file()}
    done = run("init", str(deployment))
    assert done.returncode == 2
    assert "exists already" in done.stderr
    (deployment / "kvrun.toml").rename(deployment / "away")
    try:
        done = run("init", str(deployment))
        assert done.returncode == 2
        assert "another deployment uses this data folder" in done.stderr
        assert not (deployment / "kvrun.toml").exists()
    finally:
        (deployment / "away").rename(deployment / "kvrun.toml")
    assert {p: p.read_bytes() for p in deployment.rglob("*") if p.is_file()} == before


def test_init_with_a_bad_value_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("init", str(tmp_path / "x"), "--name", "a b")
    assert done.returncode == 2
    assert "deployment.name" in done.stderr
    assert list((tmp_path / "x").iterdir()) == []


def test_a_configuration_error_is_text_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "kvrun.toml").write_text("[gateway]\nprot = 1\n")
    done = run_process("up", cwd=tmp_path)
    assert done.returncode == 2
    assert "gateway.prot is not a known setting" in done.stderr
    assert "did you mean gateway.port?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_an_error_before_anything_starts(deployment: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("up", "--port", str(port), cwd=deployment)
    assert done.returncode == 3
    assert f"gateway.port = {port}" in done.stderr
    assert "starting" not in done.stdout
    assert not list((deployment / "kvrun-data/logs").iterdir())
    assert not list((deployment / "kvrun-data/run").iterdir())


def test_a_governed_engine_option_is_refused_before_anything_starts(deployment: Path) -> None:
    by_flag = run("up", cwd=deployment, KVRUN_ENGINE__EXTRA_ARGS='["--kv-events-config={}"]')
    assert by_flag.returncode == 2
    assert "--kv-events-config" in by_flag.stderr
    by_variable = run("up", cwd=deployment, VLLM_SERVER_DEV_MODE="1")
    assert by_variable.returncode == 2
    assert "VLLM_SERVER_DEV_MODE" in by_variable.stderr
    assert not list((deployment / "kvrun-data/logs").iterdir())


def test_status_of_what_does_not_run_says_so(deployment: Path) -> None:
    done = run("status", cwd=deployment)
    assert done.returncode == 1
    assert "kvrun-data" in done.stdout
    answer = json.loads(run("status", "--json", cwd=deployment).stdout)
    assert answer["up"] is None
    assert not answer["instance"]["ready"]
    assert not answer["gateway"]["ready"]


@pytest.mark.parametrize(
    "arguments",
    [("erase", "session", "--tenant", "alice"), ("requests", "show", "abc")],
)
def test_asking_a_daemon_that_does_not_run_names_the_way_out(
    deployment: Path, arguments: tuple[str, ...]
) -> None:
    done = run(*arguments, cwd=deployment)
    assert done.returncode == 3
    assert "kvrun up" in done.stderr


def test_asking_a_daemon_that_died_and_left_its_token_is_the_same_status(deployment: Path) -> None:
    run_folder = deployment / "kvrun-data/run"
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "admin.token").write_text("00" * 32 + "\n")
    done = run("erase", "session", "--tenant", "alice", cwd=deployment)
    assert done.returncode == 3
    assert "kvrun up" in done.stderr


@pytest.mark.parametrize("columns", [60, 200])
def test_help_fits_the_terminal_and_100_columns(columns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvrun", "verify", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": str(columns)},
    )
    assert max(map(len, done.stdout.splitlines())) <= min(columns, 100)


def test_doctor_answers_line_by_line(deployment: Path) -> None:
    answer = json.loads(run("doctor", "--json", cwd=deployment).stdout)
    names = {check["name"] for check in answer["checks"]}
    assert {
        "configuration", "python", "cryptography", "sealing speed", "memlock", "memfd_secret",
        "memory", "filesystem", "key root", "engine", "gateway port", "witness",
    } == names  # fmt: skip
    assert {check["level"] for check in answer["checks"]} <= {"ok", "warn", "fail"}
    for check in answer["checks"]:
        assert check["found"]
        assert check["level"] == "ok" or check["next_step"]


def test_doctor_fails_where_something_cannot_work(deployment: Path) -> None:
    done = run(
        "doctor", "--json", cwd=deployment, KVRUN_INSTANCE__MEMORY_BYTES="1000TiB",
        KVRUN_GATEWAY__HOST="203.0.113.1", KVRUN_GATEWAY__BEHIND_PROXY="true",
    )  # fmt: skip
    assert done.returncode == 1
    failed = {
        check["name"]: check for check in json.loads(done.stdout)["checks"]
        if check["level"] == "fail"
    }  # fmt: skip
    assert "instance.memory_bytes" in failed["memory"]["next_step"]
    assert "203.0.113.1" in failed["gateway port"]["found"]


@pytest.mark.parametrize("arguments", [("doctor",), ("status",)])
def test_tables_fit_a_hundred_columns(deployment: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, cwd=deployment, COLUMNS="300")
    assert max(len(line) for line in done.stdout.splitlines()) <= WIDTH
