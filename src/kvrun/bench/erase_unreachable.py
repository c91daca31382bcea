"""An erasure beside an engine that never answers and a daemon that stands still, both at once.

Two daemons have the same session's keys from one key service. The other one is a process of its
own, which is stopped (SIGSTOP) before the erasure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kvrun.config import load_config
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import ErasureScope
from kvrun.errors import KvrunError
from kvrun.instance.erasures import ErasureRequest, ErasureResult
from kvrun.instance.parts import open_erasures, open_parts
from kvrun.instance.scrubbing import SchedulerScrubber
from kvrun.keys.opening import open_keys, serving_keys

_TENANT, _SESSION = "tenant-0", "default"
_HOLD = "import sys; from kvrun.bench.erase_unreachable import hold_keys; hold_keys(sys.argv[1])"


def erase_unreachable(
    folder: Path, *, engine_deadline_s: int, lease_s: int
) -> tuple[float, ErasureResult]:
    """Milliseconds from request to certificate, and what it says. ``folder`` is empty."""
    with tempfile.TemporaryDirectory(prefix="kvrun-") as sockets:
        file = _write_config(folder, Path(sockets), engine_deadline_s, lease_s)
        config = load_config(file, {})
        engines = SchedulerScrubber(deadline_s=engine_deadline_s)
        with (
            serving_keys(config),
            open_parts(config) as parts,
            open_erasures(config, parts, None, engines) as running,
            _standing_daemon(file),
        ):
            parts.instance.keys.acquire(_TENANT, _SESSION)
            engines.listening = True
            engines.connected(
                "silent", pid=os.getpid(), software="silent", scrubs=True, send=lambda _: None
            )
            scope = ErasureScope(RequestKind.SESSION, _TENANT, _SESSION)
            began = time.perf_counter()
            done = running.erase(ErasureRequest(scope, "kvrun bench erase"))
            return (time.perf_counter() - began) * 1e3, done


def hold_keys(config_file: str) -> None:
    """Be the other daemon: have the session's keys until standard input ends."""
    keys = open_keys(load_config(Path(config_file), {}), "bench/bench/standing")
    held = keys.acquire(_TENANT, _SESSION)
    print(held.key_id, flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def _standing_daemon(config_file: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(config_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise KvrunError("the daemon that was to stand still did not start")
            os.kill(process.pid, signal.SIGSTOP)
            yield
        finally:
            process.kill()


def _write_config(folder: Path, sockets: Path, engine_deadline_s: int, lease_s: int) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "kvrun.toml"
    file.write_text(
        f'[deployment]\nworkspace = "bench"\nname = "bench"\n'
        f"[erasure]\nengine_deadline_s = {engine_deadline_s}\n"
        f'[keys]\nmode = "service"\nsocket = "{sockets}/k/keys.sock"\nlease_s = {lease_s}\n'
        f'[instance]\ndata_dir = "data"\nmemory_bytes = "64MiB"\n'
    )
    return file
