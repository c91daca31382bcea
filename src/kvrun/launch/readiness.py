"""Questions that tell whether a process is ready, and whether an address is free."""

import http.client
import socket
import ssl
from pathlib import Path

from kvrun.errors import KvrunError

_TIMEOUT_S = 2.0


class AddressInUseError(KvrunError):
    """An address that kvrun must listen on is taken or cannot be used."""

    exit_code = 3


def unix_accepts(path: Path) -> bool:
    """Whether something listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def http_answers(url: str, path: str) -> bool:
    """Whether ``GET path`` gives 200; ``url`` is ``unix:/socket``, ``http://`` or ``https://``."""
    try:
        return http_get(url, path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def http_get(url: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> tuple[int, bytes]:
    """Status and body of a ``GET`` on this machine. Raises OSError or HTTPException."""
    connection = connect(url, timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def free_port() -> int:
    """A port of loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to ``unix:/socket``, ``http://`` or ``https://`` on this machine."""
    scheme, _, rest = url.partition(":")
    if scheme == "unix":
        return _UnixConnection(rest, timeout_s)
    authority = rest.strip("/")
    if scheme == "https":
        # Our own gateway on this machine: whether it answers is asked, not who it is.
        return http.client.HTTPSConnection(
            authority,
            timeout=timeout_s,
            context=ssl._create_unverified_context(),  # noqa: S323
        )
    return http.client.HTTPConnection(authority, timeout=timeout_s)


def require_free(host: str, port: int, setting: str) -> None:
    """Raise AddressInUseError, naming ``setting``, unless ``host:port`` can be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise AddressInUseError(
            f"{setting} = {port}: cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"choose another {setting}, or stop what listens there",
        ) from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
