"""An honest log that can also be forked, a kvrun witness on a real socket, and dishonest ones."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.checkpoint import Checkpoint, Ed25519Signer, sign_checkpoint
from kvrun.audit.merkle import leaf_hashes, tree_root
from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.control.witness_app import WitnessApp
from kvrun.control.witness_c2sp import C2spWitness
from kvrun.control.witness_http import HttpLimits
from kvrun.control.witness_metrics import WitnessMetrics
from kvrun.control.witness_request import AddCheckpoint
from kvrun.control.witness_server import Cosigner
from kvrun.control.witness_state import WitnessState
from kvrun.gateway.server import bind
from support.merkle_proofs import consistency_proof

ORIGIN = "kvrun.test/instances/one"
NOW = 1_780_000_000
LIMITS = HttpLimits(timeout_s=10, max_bytes=64 * 1024)


@dataclass
class Log:
    """A log of ``size`` records; from ``forked_at`` on they are others than the honest log's."""

    size: int
    forked_at: int | None = None
    origin: str = ORIGIN
    seed: int = 1
    leaves: list[bytes] = field(init=False)

    def __post_init__(self) -> None:
        honest = self.size if self.forked_at is None else self.forked_at
        records = [b"record %d" % number for number in range(honest)]
        records += [b"other %d" % number for number in range(honest, self.size)]
        self.leaves = leaf_hashes(records)
        private_key = Ed25519PrivateKey.from_private_bytes(bytes([self.seed]) * 32)
        self.signer = Ed25519Signer(self.origin, private_key)

    @property
    def key(self) -> VerifierKey:
        return self.signer.key

    def note(self, size: int | None = None) -> bytes:
        size = self.size if size is None else size
        return sign_checkpoint(
            Checkpoint(self.origin, size, tree_root(self.leaves[:size])), self.signer
        )

    def proof(self, old_size: int, size: int | None = None) -> list[bytes]:
        return consistency_proof(self.leaves[: self.size if size is None else size], old_size)

    def request(self, old_size: int, size: int | None = None) -> bytes:
        return AddCheckpoint(old_size, tuple(self.proof(old_size, size)), self.note(size)).encode()


def open_state(folder: Path, name: str | None = "witness.test/w1") -> WitnessState:
    return WitnessState(folder, name, now=lambda: NOW)


@contextlib.contextmanager
def running_witness(
    folder: Path, log_keys: list[VerifierKey], name: str = "witness.test/w1"
) -> Iterator[tuple[str, VerifierKey]]:
    """A kvrun witness on loopback: its address and its key."""
    state = open_state(folder, name)
    listener = bind("127.0.0.1", 0)
    cosigner = Cosigner(state, log_keys, now=lambda: NOW)
    app = WitnessApp(cosigner, WitnessMetrics(state, cosigner.logs))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", state.key
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        state.close()


class Served(NamedTuple):
    """A witness in a process of its own."""

    url: str
    key: VerifierKey
    pid: int


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[Served]:
    """``kvrun witness serve`` as a process of its own."""
    command = [sys.executable, "-m", "kvrun", "witness", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        yield Served(url, parse_verifier_key(process.stdout.readline()), process.pid)
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(timeout=30) == -signal.SIGTERM


def client(url: str, *keys: VerifierKey, timeout_s: float = 10) -> C2spWitness:
    limits = HttpLimits(timeout_s=timeout_s, max_bytes=LIMITS.max_bytes)
    return C2spWitness(url, keys, limits=limits, now=lambda: NOW)


@contextlib.contextmanager
def liar(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does ``behave`` with every connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def read_request(connection: socket.socket) -> bytes:
    """One HTTP request's body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return body


def http(status: int, body: bytes, media_type: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Return as soon as ``condition`` holds; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
