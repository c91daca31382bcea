"""``kvrun witness``, and what set-up, status and doctor say of a log without a witness."""

import json
import os
import pty
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console
from timestamp_authority import make_authority
from typer.testing import CliRunner
from witness_rig import LIMITS, Log, client, open_state, serving, wait_for

from audit.simulator import honest
from kvrun.cli.main import app
from kvrun.cli.probes import Level
from kvrun.cli.witness_choice import check_witness, witness_line, witness_settings
from kvrun.config import ConfigError, load_config
from kvrun.control.witness import WitnessRefusedError, WitnessUnavailableError, ask, open_witnesses
from kvrun.control.witness_c2sp import C2spWitness
from kvrun.control.witness_http import HttpLimits
from kvrun.control.witness_state import read_key, read_logs

LOG = Log(40)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout


@pytest.fixture
def log_key(tmp_path: Path) -> Path:
    path = tmp_path / "log.vkey"
    path.write_text(f"# the other installation\n{LOG.key.text()}\n")
    return path


def test_the_command_serves_remembers_and_shows(tmp_path: Path, log_key: Path) -> None:
    state = tmp_path / "witness"
    arguments = ("--log-key", log_key, "--state", state, "--name", "ours.test/w")
    with serving(*arguments) as (url, key, _):
        assert key.name == "ours.test/w"
        witness = client(url, key)
        # The process states its own time, which is later than the rig's.
        witness = C2spWitness(url, [key], limits=LIMITS, now=lambda: 4e9)
        assert ask(witness, 0, LOG.note(20), lambda old: LOG.proof(old, 20))
        assert run("witness", "key", "--state", state) == (0, key.text() + "\n")
        assert run("witness", "logs", "--state", state)[0] == 0
        with urllib.request.urlopen(f"{url}/healthz") as answer:
            assert answer.status == 200
    with serving("--log-key", log_key, "--state", state) as (url, same, _):
        assert same == key
        witness = C2spWitness(url, [key], limits=LIMITS, now=lambda: 4e9)
        with pytest.raises(WitnessRefusedError):
            witness.add_checkpoint(20, [], Log(40, forked_at=3).note(20))
        status, output = run("witness", "logs", "--state", state, "--json")
    assert status == 1
    [view] = json.loads(output)["logs"]
    assert (view["log"], view["size"]) == (LOG.origin, 20)
    assert view["refused"][0]["note"].encode() == Log(40, forked_at=3).note(20)
    assert "1" in run("witness", "logs", "--state", state)[1]


def test_it_speaks_tls(tmp_path: Path, log_key: Path) -> None:
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3 -subj /CN=x"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(
        ["openssl", *command.split(), *names], cwd=tmp_path, check=True, capture_output=True
    )
    cert = tmp_path / "cert.pem"
    tls = ("--tls-cert", cert, "--tls-key", tmp_path / "key.pem")
    state = tmp_path / "witness"
    with serving("--log-key", log_key, "--state", state, *tls) as (url, key, _):
        assert url.startswith("https://")
        trusting = HttpLimits(timeout_s=10, max_bytes=65536, ca_file=cert)
        witness = C2spWitness(url, [key], limits=trusting, now=lambda: 4e9)
        assert witness.add_checkpoint(0, [], LOG.note(20))
        other = C2spWitness(url, [key], limits=LIMITS, now=lambda: 4e9)
        with pytest.raises(WitnessUnavailableError, match="certificate"):
            other.add_checkpoint(20, [], LOG.note(20))
        with pytest.raises(OSError, match="CERTIFICATE"):
            urllib.request.urlopen(f"{url}/healthz", context=ssl.create_default_context())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--listen", "0.0.0.0:8470"], "without TLS"),
        (["--listen", "[::]:8470"], "without TLS"),
        (["--listen", "witness.example:8470"], "without TLS"),
        (["--listen", "8470"], "is no address"),
        (["--listen", "127.0.0.1:port"], "is no address"),
        (["--listen", "127.0.0.1:99999"], "is no address"),
        (["--tls-cert", "cert.pem"], "belong together"),
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], r"no\.pem is no file"),
        (["--name", "a b"], "--name"),
    ],
)
def test_what_it_refuses_to_serve_is_said(
    tmp_path: Path, log_key: Path, arguments: list[str], expected: str
) -> None:
    command = ["witness", "serve", "--log-key", str(log_key), "--state", str(tmp_path / "w")]
    refused = CliRunner().invoke(app, [*command, *arguments])
    assert refused.exit_code == 2
    assert re.search(expected, refused.stderr)
    assert not (tmp_path / "w").exists()


def test_a_witness_key_is_not_taken_for_a_logs_key(tmp_path: Path) -> None:
    state = open_state(tmp_path / "w")
    (tmp_path / "w.vkey").write_text(state.key.text())
    state.close()
    command = ["witness", "serve", "--state", str(tmp_path / "w")]
    refused = CliRunner().invoke(app, [*command, "--log-key", str(tmp_path / "w.vkey")])
    assert refused.exit_code == 2
    assert "is a witness's key" in refused.stderr
    assert read_key(tmp_path / "none") is None
    assert run("witness", "key", "--state", tmp_path / "none")[0] == 3


def init(folder: Path, *arguments: object) -> str:
    status, output = run("init", folder, "--model", "tiny", *arguments)
    assert status == 0, output
    return output


def test_set_up_without_a_witness_says_what_that_means(tmp_path: Path) -> None:
    """A pipe gets the words; a terminal gets them in amber."""
    output = init(tmp_path / "chat")
    assert "witness: none" in output
    assert "rewrite both unseen" in output
    assert "\x1b" not in output
    config = load_config(tmp_path / "chat" / "kvrun.toml", {})
    terminal = Console(force_terminal=True, color_system="standard", width=100)
    with terminal.capture() as capture:
        terminal.print(witness_line(config))
    assert "\x1b[33mwitness: none\x1b[0m" in capture.get()
    assert open_witnesses(config) == []
    check = check_witness(config)
    assert (check.level, check.found.startswith("none: ")) == (Level.WARN, True)
    # Status answers though nothing runs.
    for arguments, expected in (((), "witness: none"), (("--json",), '"witness": []')):
        _, output = run("status", "-c", tmp_path / "chat" / "kvrun.toml", *arguments)
        assert expected in output


def test_set_up_takes_each_kind_of_witness(short_folder: Path, log_key: Path) -> None:
    authority = make_authority(short_folder / "tsa")
    state = open_state(short_folder / "w")
    key = short_folder / "w.vkey"
    key.write_text(state.key.text())
    state.close()
    root = authority.folder / "ca.pem"
    chosen = {
        "c2sp": ("https://w.example", "--witness-key", key),
        "folder": (f"git:{short_folder}/witness.git",),
        "remote": ("git:https://git.example/audit.git",),
        "scp": ("git:git@git.example:audit.git",),
        "timestamp": ("timestamp:http://tsa.example/tsr", "--witness-key", root),
    }
    names = {}
    for folder, (text, *more) in chosen.items():
        output = init(short_folder / folder, "--witness", text, *more)
        assert "witness: none" not in output
        config = load_config(short_folder / folder / "kvrun.toml", {})
        [witness] = open_witnesses(config)
        names[folder] = witness.name
        assert check_witness(config).level is Level.OK
    assert names == {
        "c2sp": "w.example",
        "folder": f"git {short_folder}/witness.git",
        "remote": "git https://git.example/audit.git",
        "scp": "git git@git.example:audit.git",
        "timestamp": "timestamps of tsa.example",
    }


@pytest.mark.parametrize(
    ("text", "key_file", "expected"),
    [
        ("somebody", None, "not known"),
        ("git:", None, "not known"),
        ("https://w.example", None, "needs --witness-key"),
        ("timestamp:http://t.example", None, "needs --witness-key"),
        ("none", Path("key"), "needs no --witness-key"),
        ("https://w.example", Path("missing"), "is no file"),
    ],
)
def test_a_choice_that_is_not_known_is_refused(
    text: str, key_file: Path | None, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        witness_settings(text, key_file)


def test_set_up_asks_at_a_terminal(tmp_path: Path) -> None:
    """On a real terminal the question comes before anything is written."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvrun", "init", "chat", "--model", "tiny"],
        cwd=tmp_path,
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(child)
    seen = b""

    def asked() -> bool:
        nonlocal seen
        seen += os.read(parent, 4096)
        return b"Witness [none]" in seen

    wait_for(asked)
    assert not (tmp_path / "chat").exists()
    os.write(parent, f"git:{tmp_path}/w.git\n".encode())
    try:
        while data := os.read(parent, 4096):
            seen += data
    except OSError:
        pass  # the terminal is closed
    os.close(parent)
    assert process.wait(timeout=30) == 0, seen
    config = load_config(tmp_path / "chat" / "kvrun.toml", {})
    assert config.witness.names == (f"git {tmp_path}/w.git",)


def test_what_a_witness_needs_is_checked_before_it_is_needed(tmp_path: Path, log_key: Path) -> None:
    folder = tmp_path / "chat"
    init(folder, "--witness", "https://w.example", "--witness-key", log_key)
    check = check_witness(load_config(folder / "kvrun.toml", {}))
    assert check.level is Level.FAIL
    assert "is a log's key" in check.found
    log_key.unlink()
    check = check_witness(load_config(folder / "kvrun.toml", {}))
    assert (check.level, "log.vkey" in check.found) == (Level.FAIL, True)


def test_a_repository_needs_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(tmp_path / "chat", "--witness", f"git:{tmp_path}/witness.git")
    monkeypatch.setenv("PATH", str(tmp_path))
    check = check_witness(load_config(tmp_path / "chat" / "kvrun.toml", {}))
    assert (check.level, check.next_step) == (Level.FAIL, "install git")


def test_two_installations_witness_each_other_by_their_commands_alone(tmp_path: Path) -> None:
    """Each serves, collects its own log with the other's cosignature, and an auditor verifies."""
    logs = {name: f"{name}.test/instances/one" for name in "ab"}
    for name, log_id in logs.items():
        init(tmp_path / name, "--workspace", name)
        world = honest(tmp_path / f"{name}-log", log_id)
        shutil.copytree(world.folder, tmp_path / name / "kvrun-data" / "audit")
    with ExitStack() as stack:
        for name, other in ("ab", "ba"):
            log_key = tmp_path / other / "kvrun-data" / "audit" / "signer.vkey"
            state = tmp_path / name / "witness"
            url, key, _ = stack.enter_context(serving("--log-key", log_key, "--state", state))
            (tmp_path / f"{name}.vkey").write_text(key.text())
            config = tmp_path / other / "kvrun.toml"
            settings = f'[witness]\nurls = ["{url}"]\nkeys_file = "{tmp_path}/{name}.vkey"\n'
            config.write_text(config.read_text().replace("[witness]\n", settings))
        for name in "ab":
            config = tmp_path / name / "kvrun.toml"
            status, output = run("audit", "collect", "--once", "--json", "--config", config)
            assert status == 0, output
            [report] = json.loads(output)["logs"]
            assert list(report["witnesses"].values()) == ["cosigned"]
    for name, other in ("ab", "ba"):
        [folder] = (tmp_path / name / "kvrun-data" / "storage").rglob("audit/*")
        checkpoint = max(folder.glob("checkpoint-*"))
        log_key = tmp_path / f"{name}-log" / "log" / "signer.vkey"
        arguments = ("--key", log_key, "--checkpoint", checkpoint)
        command = ("verify", folder, *arguments, "--witness-key", tmp_path / f"{other}.vkey")
        status, output = run(*command, "--json")
        assert (status, json.loads(output)["verdicts"]["witnessed"]) == (0, "pass"), output
        [view] = read_logs(tmp_path / other / "witness")
        assert view.origin == logs[name]
