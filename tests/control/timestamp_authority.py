"""A real little RFC 3161 authority: ``openssl ts -reply`` behind HTTP, with a CA of its own."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
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


def make_authority(folder: Path, name: str = "Test", lifetime_s: float = 30 * 86_400) -> Authority:
    folder.mkdir(parents=True)
    (folder / "tsa.cnf").write_text(_CONFIG.format(folder=folder))
    (folder / "serial").write_text("01\n")
    root_key = ec.generate_private_key(ec.SECP256R1())
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    end = datetime.now(UTC) + timedelta(seconds=lifetime_s)
    root = _certificate(f"{name} CA", root_key, f"{name} CA", root_key, end)
    leaf = _certificate(f"{name} TSA", leaf_key, f"{name} CA", root_key, end)
    (folder / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "tsa.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    (folder / "tsa.key").write_bytes(
        leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return Authority(folder)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    end: datetime,
) -> x509.Certificate:
    """A CA's certificate when it issues itself, else one that may sign timestamps."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    )
    if name != issuer:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(purpose, critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def openssl_verifies(folder: Path, note: Path, token: Path) -> bool:
    """Whether openssl itself takes the token, with nothing but the root certificate."""
    command = ["openssl", "ts", "-verify", "-data", str(note), "-in", str(token)]
    command += ["-CAfile", str(folder / "ca.pem")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
