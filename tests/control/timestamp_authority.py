"""A real little RFC 3161 authority: ``openssl ts -reply`` behind HTTP, with a CA of its own."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from witness_rig import http, liar, read_request

_CONFIG = """
[tsa]
default_tsa = one
[one]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
"""
_EXTENSIONS = "extendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n"


@dataclass
class Authority:
    """An authority in a folder. ``change`` may tamper with an answer before it is sent."""

    folder: Path
    change: Callable[[bytes], bytes] = field(default=lambda answer: answer)
    asked: int = 0

    @property
    def root(self) -> bytes:
        """The root certificate, PEM."""
        return (self.folder / "ca.pem").read_bytes()

    def reply(self, request: bytes) -> bytes:
        self.asked += 1
        (self.folder / "request.tsq").write_bytes(request)
        _openssl(
            self.folder,
            "ts -reply -config tsa.cnf -queryfile request.tsq -inkey tsa.key -signer tsa.pem "
            "-out answer.tsr",
        )
        return self.change((self.folder / "answer.tsr").read_bytes())

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """The authority on loopback: its address."""
        with liar(
            lambda connection: connection.sendall(
                http(200, self.reply(read_request(connection)), "application/timestamp-reply")
            )
        ) as url:
            yield url


def make_authority(folder: Path, name: str = "Test") -> Authority:
    folder.mkdir(parents=True)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    _openssl(folder, f"req -x509 {key} -keyout ca.key -out ca.pem -subj /CN={name}-CA -days 30")
    _openssl(folder, f"req {key} -keyout tsa.key -out tsa.csr -subj /CN={name}-TSA")
    (folder / "extensions").write_text(_EXTENSIONS)
    (folder / "tsa.cnf").write_text(_CONFIG.format(folder=folder))
    (folder / "serial").write_text("01\n")
    _openssl(
        folder,
        "x509 -req -in tsa.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions "
        "-out tsa.pem -days 30",
    )
    return Authority(folder)


def openssl_verifies(folder: Path, note: Path, token: Path) -> bool:
    """Whether openssl itself takes the token, with nothing but the root certificate."""
    command = ["openssl", "ts", "-verify", "-data", str(note), "-in", str(token)]
    command += ["-CAfile", str(folder / "ca.pem")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
