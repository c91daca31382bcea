"""HTTP over a Unix socket."""

import http.client
import socket
from pathlib import Path


def get(socket_file: Path, path: str) -> tuple[int, str]:
    """Status and text of a GET."""
    connection = _Connection(socket_file)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))
