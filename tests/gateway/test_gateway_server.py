"""The gateway as a process of its own, with TLS."""

import datetime
import ipaddress
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

SCRIPT = """
import sys
from kvrun.gateway.server import run_gateway
from kvrun.config.gateway import GatewaySettings
port, cert, key, engine = sys.argv[1:]
run_gateway(GatewaySettings(port=int(port), tls_cert=cert, tls_key=key, engine_url="unix:" + engine,
                            require_auth=False))
"""


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_path.write_bytes(made.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_path, key_path


@pytest.fixture
def process(
    certificate: tuple[Path, Path], tmp_path: Path
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [str(port), *map(str, certificate), str(tmp_path / "none.sock")]
    started = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])
    deadline = time.monotonic() + 30
    while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        assert started.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield port, started
    started.kill()
    started.wait()


def test_it_speaks_tls_and_ends_on_sigterm(
    process: tuple[int, "subprocess.Popen[bytes]"], certificate: tuple[Path, Path]
) -> None:
    port, started = process
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"https://127.0.0.1:{port}/healthz", context=context, timeout=10)
    assert caught.value.code == 503
    assert b"engine unavailable" in caught.value.read()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10)
    started.send_signal(signal.SIGTERM)
    assert started.wait(10) in (0, -signal.SIGTERM)


def test_a_process_that_forbids_dumps_is_not_dumpable() -> None:
    code = (
        "import ctypes; from kvrun.gateway.server import forbid_dumps; c = ctypes.CDLL(None);"
        "before = c.prctl(3, 0, 0, 0, 0); forbid_dumps(); print(before, c.prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"1", b"0"]
