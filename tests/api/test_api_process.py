"""``kvrun control`` as a process, over real HTTP; killed, it takes no deployment with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvrun.launch.readiness import free_port

SERVING = """
import os, sys
from pathlib import Path
open("pid", "w").write(str(os.getpid()))
while True:
    import time; time.sleep(60)
"""
"""A deployment's process: it lives until it is killed."""

DRIVER = f"""
import sys
from kvrun.api import services
from kvrun.cli.main import main
from kvrun.deployments.local import LocalLauncher
from kvrun.deployments.model import LauncherKind
from kvrun.deployments.watched import WatchedLauncher

def command(site):
    code = "import os; os.chdir(" + repr(str(site.folder)) + ")" + {SERVING!r}
    return [sys.executable, "-c", code]

opened = services.open_services
services.open_services = lambda config, file: opened(config, file, launchers={{
    LauncherKind.LOCAL: LocalLauncher(command=command),
    LauncherKind.ATTACHED: WatchedLauncher(), LauncherKind.OWN: WatchedLauncher()}})
sys.argv[0] = "kvrun"
main()
"""


class Control:
    """A running ``kvrun control``."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.output = folder / "control.out"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")}
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, "control", "--port", str(port)],
                cwd=folder,
                env={**plain, "XDG_DATA_HOME": str(folder)},
                stdout=out,
                stderr=out,
            )
        eventually(self.answers, self.said)

    def said(self) -> str:
        return self.output.read_text()

    def answers(self) -> bool:
        assert self.process.poll() is None, self.said()
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def eventually(holds: Callable[[], bool], said: Callable[[], str], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


@pytest.fixture
def controls(short_folder: Path) -> Iterator[list[Control]]:
    running: list[Control] = []
    yield running
    for control in running:
        if control.process.poll() is None:
            control.end(signal.SIGTERM)
    for place in short_folder.glob("**/pid"):
        with suppress(ProcessLookupError):
            os.kill(int(place.read_text()), signal.SIGKILL)


def test_killed_it_leaves_a_deployment_alone_and_the_next_one_finds_it(
    short_folder: Path, controls: list[Control]
) -> None:
    port = free_port()
    control = Control(short_folder, port)
    controls.append(control)
    link = short_folder / "kvrun/control/owner-link.token"
    token = link.read_text().strip()
    # It says where it is, and where the link is; a log is no place for the link itself.
    assert control.url in control.said()
    assert str(link) in control.said()
    assert token not in control.said()
    with httpx.Client(base_url=f"{control.url}/api/v1") as http:
        refused = http.get("/me")
        assert refused.status_code == 401
        assert "server" not in refused.headers
        me: dict[str, Any] = http.post("/sign-in/owner-link", json={"token": token}).json()
        http.headers["X-CSRF-Token"] = me["csrf_token"]
        workspace = http.get("/workspaces").json()["items"][0]["id"]
        spec = {"name": "chat", "model": "tiny", "multi_tenant": True}
        made = http.post(f"/workspaces/{workspace}/deployments", json=spec).json()
        assert http.post(f"/deployments/{made['id']}/start").status_code == 202
        noted = short_folder / f"kvrun/control/deployments/{made['id']}/pid"
        eventually(lambda: noted.exists() and bool(noted.read_text()), control.said)
        pid = int(noted.read_text())

        control.end(signal.SIGKILL)
        assert Path(f"/proc/{pid}").exists()
        again = Control(short_folder, port)
        controls.append(again)
        # The same sign-in, and the same process: nothing is started twice.
        found = http.get(f"/deployments/{made['id']}").json()
        assert found["state"] == "starting"
        assert Path(f"/proc/{pid}").exists()
        assert int(noted.read_text()) == pid
    assert not link.exists()
    assert again.end(signal.SIGTERM) == 0, again.said()
    assert Path(f"/proc/{pid}").exists()
    assert not re.search("Traceback|Error", again.said())
