"""A job in a process of its own, which goes on when whoever started it ends.

``python -m kvrun.finetune.process`` reads an order on its standard input. How far it is stands in
the job's note; SIGTERM stops it after its current step, as ``kvrun finetune cancel`` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from kvrun.errors import KvrunError
from kvrun.finetune.finishing import Surroundings
from kvrun.finetune.job import resume
from kvrun.finetune.store import FineTunes
from kvrun.keys.signing import KeyPurpose, SigningRing

_MAX_ORDER = 1 << 16
_LOG = "process.log"


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which job to carry out: ``root`` is the store's folder, ``signing`` the ring's;
    ``memory_bytes`` is what it may take."""

    root: str
    signing: str
    name: str
    memory_bytes: int


def start(store: FineTunes, signing: Path, name: str, memory_bytes: int) -> int:
    """Carry out a job that was noted; the process's id. What it says is in its job's folder."""
    order = Order(
        root=str(store.root.absolute()),
        signing=str(signing.absolute()),
        name=name,
        memory_bytes=memory_bytes,
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(store.job_folder(name) / _LOG, flags, 0o600), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvrun.finetune.process"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as given:
        given.write(msgspec.json.encode(order))
    # Nobody waits for it, but somebody has to take its end.
    threading.Thread(target=process.wait, name="kvrun-finetune-end", daemon=True).start()
    return process.pid


def main() -> int:
    """Carry out the order; the exit status."""
    order = msgspec.json.decode(sys.stdin.buffer.read(_MAX_ORDER), type=Order)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ring = SigningRing(Path(order.signing), now=time.time)
    store = FineTunes(Path(order.root))
    around = Surroundings(
        store=store,
        signer=lambda: ring.load_or_create(KeyPurpose.EVIDENCE),
        now=time.time,
        random_bytes=os.urandom,
        should_stop=stop.is_set,
        memory_bytes=order.memory_bytes,
    )
    try:
        resume(around, order.name)
    except KvrunError as error:
        sys.stderr.write(f"{error.diagnostics()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
