"""A real instance daemon in a process of its own, and claims that it believes."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import Claim, ClaimSigner
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.erasure.job import JobStore
from kvrun.instance.client import AdminClient
from kvrun.instance.handles import Reuse

# A loaded test machine may answer late; only the tests of deadlines set short ones.
ENGINE_DEADLINE_S = 2
PATIENT = "match_deadline_ms = 20000\nload_deadline_ms = 60000\n"

# Lets a test end or stop the daemon exactly in the middle of something: the flag file names the
# moment and the signal, and the daemon takes it up once.
AT_A_MOMENT = """
import signal, threading
from kvrun.instance.instance import Instance
from kvrun.instance.transfers import Transfers
one_at_a_time = threading.Lock()  # while one thread stops the process no other goes on
flag = Path(sys.argv[1]).with_name("moment")
def at(kind, name):
    original = getattr(kind, name)
    def watched(self, *a, **k):
        with one_at_a_time, suppress(FileNotFoundError):
            moment, number, after = flag.read_text().split()
            if moment == name and after == "0":
                flag.unlink()
                # To this thread: what is sent to the process may stop it a step too late.
                signal.pthread_kill(threading.get_ident(), int(number))
            elif moment == name:
                flag.write_text(f"{moment} {number} {int(after) - 1}")
        return original(self, *a, **k)
    setattr(kind, name, watched)
at(Instance, "match")
at(Transfers, "_seal_one")
at(Transfers, "_open_one")
"""

_RUNNER = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
%s
from kvrun.config import load_config
from kvrun.instance.daemon import run
from kvrun.instance.launch_secrets import LaunchSecrets
given = json.loads(os.read(int(sys.argv[2]), 65536))
run(load_config(Path(sys.argv[1]), {}), LaunchSecrets(
    given["engine"], given["gateway"], given["admin"], (bytes.fromhex(given["claim"]),)))
"""


class Daemon:
    """Starts, stops, kills and restarts one daemon on one data folder."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: str = "",
        prelude: str = "",
        engine_deadline_s: int = ENGINE_DEADLINE_S,
    ) -> None:
        self.folder = folder
        self._prelude = prelude
        self.config = folder / "kvrun.toml"
        self.config.write_text(
            # An engine within the test's own process cannot be woken: it confirms at its next step.
            f"[erasure]\nengine_deadline_s = {engine_deadline_s}\n"
            f'[instance]\ndata_dir = "{folder}/d"\nmemory_bytes = "64MiB"\n' + settings
        )
        self.data = folder / "d"
        self.root = folder / "d-root"
        self.socket = self.data / "run" / "instance.sock"
        self.engine_token = secrets.token_hex(32)
        self.gateway_token = secrets.token_hex(32)
        self.admin_token = secrets.token_hex(32)
        self.claim_key = Ed25519PrivateKey.generate()
        self.signer = ClaimSigner(self.claim_key)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "daemon.log"

    def start(self, timeout_s: float = 60.0) -> None:
        """Start and wait until the socket answers."""
        self.process = self.launch()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the daemon ended at start: {self.log.read_text()}")
            if self._listens():
                token_file = self.socket.parent / "engine.token"
                token_file.write_text(self.engine_token)
                return
            time.sleep(0.02)
        raise TimeoutError(f"the daemon did not start: {self.log.read_text()}")

    def launch(self) -> subprocess.Popen[bytes]:
        """Start a process and leave it alone."""
        read, write = os.pipe()
        given = {
            "engine": self.engine_token,
            "gateway": self.gateway_token,
            "admin": self.admin_token,
            "claim": self.claim_key.public_key().public_bytes_raw().hex(),
        }
        os.write(write, json.dumps(given).encode())
        os.close(write)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUNNER % self._prelude, str(self.config), str(read)],
                pass_fds=[read],
                stdout=log,
                stderr=log,
            )
        os.close(read)
        return process

    @property
    def pid(self) -> int:
        """The process id of the running daemon."""
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """End it as an operator would, also where a test left it stopped."""
        if self.process is not None and self.process.poll() is None:
            self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it from running at all."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def no_disk(self) -> Iterator[None]:
        """Every write of it to a file fails, as on a full disk."""
        before = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, before)

    def admin(self, operation: str, **arguments: str) -> object:
        """One administrative call."""
        with AdminClient(self.socket, self.admin_token) as client:
            return json.loads(client.call(operation, arguments))

    def erase_session(self, tenant: str, session: str = "default") -> ErasureStatement:
        """Erase one session; what the certificate states of it."""
        done = self.admin(
            "erase",
            kind="session",
            tenant=tenant,
            session=session,
            requester="a test",
            confirmed="yes",
        )
        assert isinstance(done, dict)
        certificate = Path(done["certificate"]).read_bytes()
        return decode_statement(payload_of(parse_certificate(certificate)))

    def confirmed(self, stated: ErasureStatement) -> bool:
        """Whether the engines have confirmed by now that nothing of an erasure is left in them."""
        job = JobStore(self.data / "erasure" / "jobs").load(stated.request.id)
        return job is not None and not job.unconfirmed and not job.pages.held

    def reuse(self, request_id: str) -> Reuse:
        """What a request reused, by the daemon's own count."""
        with AdminClient(self.socket, self.admin_token) as client:
            reply = client.call("request", {"request_id": request_id})
        return msgspec.json.decode(reply, type=Reuse)

    def events(self) -> list[dict[str, object]]:
        """Every audit record, in order."""
        records = []
        for segment in sorted(self.data.rglob("audit/*.jsonl")):
            records += [json.loads(line) for line in segment.read_text().splitlines()]
        return records

    def count(self, event: str) -> int:
        """How many records of one event the log holds."""
        return sum(1 for record in self.events() if record["event"] == event)

    def claim(
        self,
        tenant: str,
        salt: str,
        generation: int,
        *,
        session: str = "default",
        request_id: str = "",
        uses: int = 1,
        lifetime_s: int = 300,
        issued_ago_s: int = 0,
        deployment: str = "default",
    ) -> str:
        """A claim as the gateway would stamp it."""
        now = int(time.time()) - issued_ago_s
        return self.signer.sign(
            Claim(
                workspace="default",
                deployment=deployment,
                tenant=tenant,
                session=session,
                generation=generation,
                salt=salt,
                request_id=request_id or secrets.token_hex(8),
                nonce=secrets.token_urlsafe(16),
                uses=uses,
                issued_at=now,
                expires_at=now + lifetime_s,
            )
        )

    def _listens(self) -> bool:
        # A daemon that was killed leaves its socket behind.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=30)
        self.process = None
