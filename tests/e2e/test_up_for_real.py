"""``kvrun init`` and ``kvrun up`` as a newcomer types them, with the tiny model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from e2e_rig import eventually, short_folder

from kvrun.launch.readiness import free_port, http_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KVRUN = [sys.executable, "-m", "kvrun"]
CONTROL_PORT = free_port()


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


def environment() -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")}
    # Compiling takes a minute and is not what this is about.
    return plain | {
        "KVRUN_ENGINE__ENFORCE_EAGER": "true",
        "KVRUN_DEPLOYMENT__CONTEXT_WINDOW": "2048",
        "KVRUN_CONTROL__PORT": str(CONTROL_PORT),
    }


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_init_then_up_then_the_printed_curl_line_then_sigterm(folder: Path) -> None:
    shown = run(folder, *KVRUN, "init", "chat", "--model", "tiny", "--port", str(free_port()))
    key = re.search(r"kvk_[\w-]{43}", shown)
    assert key is not None
    home = folder / "chat"
    output = folder / "up.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*KVRUN, "up"], cwd=home, env=environment(), stdout=out, stderr=out
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, output.read_text()
            return "control plane:" in output.read_text()

        eventually(ready, "everything is up", timeout_s=600)
        printed = output.read_text()
        curl = (
            printed[printed.index("curl ") : printed.index("control plane:")]
            .strip()
            .replace("<your API key>", key[0])
        )
        answer = json.loads(run(folder, "sh", "-c", curl.replace("curl ", "curl -sS ", 1)))
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["text"]
        processes = json.loads((home / "kvrun-data/run/up.json").read_text())["processes"]
        assert set(processes) == {"instance", "engine", "gateway", "collector", "control"}
        control = f"http://127.0.0.1:{CONTROL_PORT}"
        assert control in printed
        eventually(lambda: http_answers(control, "/readyz"), "the control plane answers")
        status = json.loads(run(home, *KVRUN, "status", "--json"))
        assert status
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, output.read_text()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        process.wait(timeout=60)
    assert [name for name, pid in processes.items() if Path(f"/proc/{pid}").exists()] == []
    left = [path.name for path in (home / "kvrun-data/run").iterdir()]
    assert left == ["up.lock"]
    assert "Traceback" not in output.read_text()
