"""The listener on loopback to which a browser brings a login's code, once."""

import hmac
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from kvrun.errors import KvrunError

_READ_S = 5
_ALLOWED = "Done. Go back to the command line; this page can be closed."
_REFUSED = "Not allowed. The command line got nothing; this page can be closed."
_STRANGE = "This is not the answer that the command line waits for."
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kvrun login</title>
<link rel="icon" href="data:,"></head><body><p>{}</p></body></html>
"""


class LoginRefusedError(KvrunError):
    """The person did not allow it, or nobody answered in time."""


class LoginListener(HTTPServer):
    """Listens on a free port of 127.0.0.1 from the start. Raises OSError where it cannot."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self._state = ""
        self._code: str | None = None

    def wait(self, state: str, timeout_s: float) -> str:
        """The code that comes with ``state``; what comes without it is answered and forgotten.

        Raises LoginRefusedError.
        """
        self._state = state
        ends = time.monotonic() + timeout_s
        while self._code is None:
            self.timeout = ends - time.monotonic()
            if self.timeout <= 0:
                raise LoginRefusedError(
                    "nobody answered in the browser in time",
                    hint="Where the browser is on another machine: kvrun login --no-browser",
                )
            self.handle_request()
        if not self._code:
            raise LoginRefusedError("it was not allowed in the browser: nobody is logged in")
        return self._code

    def answer_to(self, target: str) -> tuple[int, str]:
        """Take what a browser brings; the status and the text that it gets."""
        asked = urlsplit(target)
        given = {name: values[0] for name, values in parse_qs(asked.query).items()}
        expected, state = self._state.encode(), given.get("state", "").encode()
        if asked.path != "/" or not expected or not hmac.compare_digest(expected, state):
            return 400, _STRANGE
        self._code = given.get("code", "")
        return 200, _ALLOWED if self._code else _REFUSED

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever breaks a connection off is nobody to tell of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = _READ_S
    server: LoginListener

    def do_GET(self) -> None:
        status, text = self.server.answer_to(self.path)
        body = _PAGE.format(text).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the address holds the code."""
