"""A real OpenBao server for tests, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from kvrun.launch.readiness import free_port

ROOT_TOKEN = "root-of-the-tests"


class BaoServer:
    """OpenBao at ``url``; ``call`` speaks to it as its operator."""

    def __init__(self, url: str, ca_file: Path | None, token: str) -> None:
        self.url, self.ca_file, self.token = url, ca_file, token
        self.unseal_key = ""
        trust = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
        self._client = httpx.Client(base_url=f"{url}/v1/", verify=trust, trust_env=False)

    def call(
        self, method: str, path: str, body: Any = None, *, token: str = "", namespace: str = ""
    ) -> dict[str, Any]:
        """The answer's ``data`` (or the whole answer); an error answer fails the test."""
        headers = {"X-Vault-Token": token or self.token}
        if namespace:
            headers["X-Vault-Namespace"] = namespace
        answer = self._client.request(method, path, json=body, headers=headers, timeout=20)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def allow(self, policy: str, rules: str) -> None:
        """Write a policy."""
        self.call("POST", f"sys/policies/acl/{policy}", {"policy": rules})

    def make_token(self, policy: str, *, namespace: str = "") -> str:
        """A token that may do what ``policy`` says."""
        body = {"policies": [policy], "no_parent": True, "period": "1h"}
        answer = self.call("POST", "auth/token/create", body, namespace=namespace)
        return str(answer["auth"]["client_token"])

    def unseal(self) -> None:
        """Unseal and wait until it leads."""
        self.call("POST", "sys/unseal", {"key": self.unseal_key})
        deadline = time.monotonic() + 30
        while self._client.get("sys/health", timeout=5).status_code != 200:
            assert time.monotonic() < deadline, "OpenBao did not become active"
            time.sleep(0.05)

    def snapshot(self) -> bytes:
        """A raft snapshot."""
        headers = {"X-Vault-Token": self.token}
        answer = self._client.get("sys/storage/raft/snapshot", headers=headers, timeout=20)
        assert answer.is_success, answer.text
        return answer.content

    def restore(self, snapshot: bytes) -> None:
        """Put a snapshot back, as an operator does after a disaster."""
        headers = {"X-Vault-Token": self.token}
        answer = self._client.post(
            "sys/storage/raft/snapshot-force", content=snapshot, headers=headers, timeout=20
        )
        assert answer.is_success, answer.text
        self.unseal()

    def answers(self) -> bool:
        """Whether it serves, sealed or not."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.get("sys/health", timeout=2)
            return True
        return False


@contextlib.contextmanager
def running_bao(
    arguments: list[str], folder: Path, url: str, ca_file: Path | None
) -> Iterator[BaoServer]:
    """``bao server`` with ``arguments``, up to the first answer; stopped at the end."""
    log = folder / "bao.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "bao", "server", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        )
    try:
        deadline = time.monotonic() + 30
        while ca_file is not None and not ca_file.exists():
            _still_starting(process, deadline, log)
        server = BaoServer(url, ca_file, ROOT_TOKEN)
        while not server.answers():
            _still_starting(process, deadline, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def dev_bao(folder: Path) -> Iterator[BaoServer]:
    """A server in memory with TLS, its transit engine mounted."""
    address = f"127.0.0.1:{free_port()}"
    certificates = folder / "certificates"
    certificates.mkdir()
    arguments = [
        "-dev",
        "-dev-tls",
        f"-dev-tls-cert-dir={certificates}",
        "-dev-no-store-token",
        f"-dev-root-token-id={ROOT_TOKEN}",
        f"-dev-listen-address={address}",
    ]
    ca_file = certificates / "vault-ca.pem"
    with running_bao(arguments, folder, f"https://{address}", ca_file) as server:
        server.call("POST", "sys/mounts/transit", {"type": "transit"})
        yield server


@contextlib.contextmanager
def raft_bao(folder: Path) -> Iterator[BaoServer]:
    """A server with storage on disk, initialised, unsealed, its transit engine mounted."""
    address, cluster = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    (folder / "raft").mkdir()
    settings = folder / "bao.hcl"
    settings.write_text(
        f'storage "raft" {{ path = "{folder / "raft"}" node_id = "one" }}\n'
        f'listener "tcp" {{ address = "{address}" tls_disable = true }}\n'
        f'api_addr = "http://{address}"\ncluster_addr = "https://{cluster}"\n'
    )
    with running_bao([f"-config={settings}"], folder, f"http://{address}", None) as server:
        made = server.call("POST", "sys/init", {"secret_shares": 1, "secret_threshold": 1})
        server.token, server.unseal_key = made["root_token"], made["keys_base64"][0]
        server.unseal()
        server.call("POST", "sys/mounts/transit", {"type": "transit"})
        yield server


class Wire:
    """A TCP forwarder to ``port``: ``cut`` ends every connection and refuses new ones."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.mend()

    def mend(self) -> None:
        """Let connections through (again)."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        ends, self._open = self._open, []
        if self._listener is not None:
            ends.append(self._listener)
            self._listener = None
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _still_starting(process: subprocess.Popen[bytes], deadline: float, log: Path) -> None:
    assert process.poll() is None, log.read_text(errors="replace")[-2000:]
    assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
    time.sleep(0.05)
