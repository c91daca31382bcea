"""Real Git repositories over HTTPS, by git's own CGI, and what plays ssh in front of them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_SSH = """\
#!/bin/sh
# Plays ssh and the machine behind it: puts on record what it was called with, and runs the command.
printf '%s\\n' "$@" > {record}
echo >> {calls}
while [ -e {gate} ]; do sleep 0.02; done
for last in "$@"; do :; done
unset GIT_DIR
exec sh -c "$last"
"""


class _Backend(BaseHTTPRequestHandler):
    """git-http-backend for those who have the token."""

    protocol_version = "HTTP/1.0"
    root: Path
    token: str

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        kind, _, credentials = self.headers.get("Authorization", "").partition(" ")
        if kind != "Basic" or b64decode(credentials) != f"x-access-token:{self.token}".encode():
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=True,
            env={
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_NOSYSTEM": "1",
                "HOME": str(self.root),
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in {**fields, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def git_over_https(root: Path, folder: Path, token: str) -> Iterator[tuple[str, Path]]:
    """Serves the repositories below ``root``; the address before a repository's name, and the
    authority of its certificate."""
    certificate, key = _certificate(folder)
    handler = type("Backend", (_Backend,), {"root": root, "token": token})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}", certificate
        finally:
            server.shutdown()
            thread.join()


def play_ssh(folder: Path) -> Path:
    """A folder for the search path with an ``ssh`` that reaches this machine; beside it ``called``
    has its arguments, one a line, and ``calls`` a line a call. It waits while ``gate`` is there.
    """
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(
        _SSH.format(record=folder / "called", gate=folder / "gate", calls=folder / "calls")
    )
    program.chmod(0o755)
    return folder


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files
