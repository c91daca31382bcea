"""A witness that dies, as by kill -9, after it signed and before it answers. For its own process.

Arguments: the state's folder, a file with the log's verifier key; the address is printed.
"""

import os
import signal
import sys
from pathlib import Path

from witness_rig import NOW

from kvrun.audit.files import read_keys
from kvrun.control.witness_app import WitnessApp
from kvrun.control.witness_metrics import WitnessMetrics
from kvrun.control.witness_server import Cosigner
from kvrun.control.witness_state import WitnessState
from kvrun.gateway.server import bind, serve_on


class DyingKey:
    """Signs, and ends the process before anyone can see the signature."""

    def __init__(self, key: object) -> None:
        self._key = key

    def sign(self, message: bytes) -> bytes:
        self._key.sign(message)  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
        return b""


def main() -> None:
    state = WitnessState(Path(sys.argv[1]), "witness.test/w1", now=lambda: NOW)
    state.private_key = DyingKey(state.private_key)  # type: ignore[assignment]
    listener = bind("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    keys = read_keys(Path(sys.argv[2]))
    cosigner = Cosigner(state, keys, now=lambda: NOW)
    app = WitnessApp(cosigner, WitnessMetrics(state, cosigner.logs))
    serve_on(listener, app, tls_cert=None, tls_key=None)


if __name__ == "__main__":
    main()
