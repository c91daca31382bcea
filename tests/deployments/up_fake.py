"""In the place of `kvrun up` where only its process counts: standard library only, so it is quick.

Run as ``python up_fake.py CONFIG_FILE``. It ends by itself once a file ``die`` is in its folder,
as `kvrun up` does when a child ends, and does not become ready while there is a file ``slow``.
"""

import json
import os
import signal
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if (FOLDER / "ill").exists() else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


FOLDER = Path(sys.argv[1]).parent


def started() -> str:
    stat = Path("/proc/self/stat").read_bytes()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {int(stat.rpartition(b')')[2].split()[19])}"


def main() -> int:
    settings = tomllib.loads(Path(sys.argv[1]).read_text())
    run = FOLDER / "data" / "run"
    run.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (FOLDER / "launches").open("a") as file:
        file.write(f"{os.getpid()}\n")
    port = settings["gateway"]["port"]
    server = ThreadingHTTPServer(("127.0.0.1", port), Well)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    note = {
        "pid": os.getpid(),
        "processes": {},
        "gateway_url": f"http://127.0.0.1:{port}",
        "engine_url": "",
        "model": settings["deployment"]["model"],
        "started_at": time.time(),
        "process_start": started(),
    }
    ready = False
    while not stop.is_set():
        if (FOLDER / "die").exists():
            sys.stderr.write("kvrun: engine ended by itself (exit status 5)\n  a line of its log\n")
            return 4
        if not ready and not (FOLDER / "slow").exists():
            ready = True
            (run / "up.json.new").write_text(json.dumps(note))
            (run / "up.json.new").replace(run / "up.json")
        stop.wait(0.02)
    (run / "up.json").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
