"""`kvrun up` without an engine: a real instance daemon, and a gateway that only says it is well.

Run as ``python up_daemon.py CONFIG_FILE``. Leaves its launch secrets in the run folder for tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kvrun.config import load_config
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.instance.known_engines import process_start
from kvrun.launch.processes import engine_url, gateway_url, instance_spec
from kvrun.launch.running import RunningState, note_running
from kvrun.launch.secrets import Launch, prepare_run_folder, remove_files
from kvrun.launch.supervisor import StopRequestedError, Supervisor


class Well(BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        """Say it."""
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing in the log."""


def main(file: Path) -> None:
    """Start, watch, stop, as `kvrun up` does."""
    config = load_config(file, {})
    prepare_run_folder(config.layout)
    launch = Launch.create()
    launch.write_files(config.layout)
    secrets = {
        "gateway": launch.gateway_token,
        "seed": launch.claim_key.private_bytes_raw().hex(),
    }
    replace_private_file(config.layout.run / "for-tests.json", json.dumps(secrets).encode())
    supervisor = Supervisor(config.layout.logs)
    signal.signal(signal.SIGTERM, supervisor.request_stop)
    try:
        supervisor.start(instance_spec(config, file, launch, dict(os.environ)))
        server = ThreadingHTTPServer(("127.0.0.1", config.gateway.port), Well)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state = RunningState(
            pid=os.getpid(),
            processes=supervisor.pids(),
            gateway_url=gateway_url(config),
            engine_url=engine_url(config),
            model=config.deployment.model,
            started_at=time.time(),
            process_start=process_start(os.getpid()),
        )
        note_running(config.layout, state)
        supervisor.watch()
    except StopRequestedError:
        pass
    finally:
        supervisor.stop_all()
        remove_files(config.layout)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except KvrunError as error:
        sys.stderr.write(f"kvrun: {error.diagnostics()}\n")
        sys.exit(error.exit_code)
