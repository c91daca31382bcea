"""A person's login on a command line: the page to open, and the token for the code that it gives.

An authorization code with PKCE (RFC 7636) that comes back to a listener on the same machine
(RFC 8252) or through the person, who pastes it.
"""

import base64
import hashlib
import secrets
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlencode

import httpx

from kvrun.client.address import origin
from kvrun.client.calls import people
from kvrun.client.link import Link
from kvrun.client.results.people import NewLogin
from kvrun.client.retry import RetryPolicy

_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class LoginBegun:
    """``page`` is where the person allows it. The browser brings ``state`` back with the code;
    ``verifier`` is shown with the code, and to nobody before."""

    page: str
    state: str
    verifier: str = field(repr=False)


def begin_login(url: str | None, *, redirect_uri: str = "", hours: int = 1) -> LoginBegun:
    """Begin a login for ``hours`` (1 to 8) at the control plane's ``url``.

    ``redirect_uri``: the listener that gets the code, ``http://127.0.0.1:PORT/``; without one the
    page shows it. Raises AddressError.
    """
    place = origin(url)
    verifier, state = (secrets.token_urlsafe(_RANDOM_BYTES) for _ in range(2))
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    asked = {"challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), "hours": hours}
    if redirect_uri:
        asked |= {"redirect_uri": redirect_uri, "state": state}
    return LoginBegun(f"{place.url}/login?{urlencode(asked)}", state, verifier)


def finish_login(
    url: str | None,
    code: str,
    verifier: str,
    *,
    timeout_s: float = 30.0,
    verify: ssl.SSLContext | bool = True,
    transport: httpx.BaseTransport | None = None,
) -> NewLogin:
    """The login for a code. Its token is an ``api_key`` for a client. Raises ClientError."""
    link = Link(
        origin(url),
        timeout_s=timeout_s,
        retry=RetryPolicy(),
        verify=verify,
        transport=transport,
    )
    try:
        return link.send(people.finish_login(code, verifier))
    finally:
        link.close()
