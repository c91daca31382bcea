"""Where the control plane is, and which key is shown to it."""

import os
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx

from kvrun.client.errors import ClientError

URL_VARIABLE = "KVRUN_API_URL"
KEY_VARIABLE = "KVRUN_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8090"


class AddressError(ClientError):
    """The address or the key cannot be used."""

    exit_code = 2
    status = 400


@dataclass(frozen=True, slots=True)
class Address:
    """The control plane's origin without a slash at its end, and the API key or a login's token
    (empty: none is sent); see ``address`` and ``origin``."""

    url: str
    loopback: bool
    key: str = field(default="", repr=False)


def address(url: str | None, key: str | None) -> Address:
    """What was given, else what the environment says, else the usual address on this machine.

    ``key`` may be the token of a person's login. Raises AddressError for an address over which a
    key must not travel, and without a key.
    """
    place = origin(url)
    secret = (key or os.environ.get(KEY_VARIABLE) or "").strip()
    if not secret:
        raise AddressError(
            "no API key for the control plane",
            hint=f"Set {KEY_VARIABLE}, or pass one. `kvrun apikeys create` and the console make"
            " keys; `kvrun login` lets a person act without one.",
        )
    if not (secret.isascii() and secret.isprintable() and " " not in secret):
        raise AddressError("the API key holds characters that no key has", hint="Copy it again.")
    return replace(place, key=secret)


def origin(url: str | None) -> Address:
    """The address alone, by the same rules: for what needs no key. Raises AddressError."""
    chosen = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(chosen)
        host = parts.hostname or ""
        parts.port  # noqa: B018  reading it checks it
    except ValueError:
        raise AddressError(f"{chosen[:200]!r} is no address", hint=_ALLOWED) from None
    extra = parts.path or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in ("http", "https") or not host or extra:
        raise AddressError(f"{chosen[:200]!r} is not the control plane's address", hint=_ALLOWED)
    loopback = _is_loopback(host)
    if parts.scheme == "http" and not loopback:
        raise AddressError(
            f"{chosen[:200]!r} would send the API key over the network unencrypted", hint=_ALLOWED
        )
    return Address(chosen, loopback)


class KeyAuth(httpx.Auth):
    """Shows the key; given explicitly so that no ``.netrc`` takes its place."""

    def __init__(self, place: Address) -> None:
        self._header = f"Bearer {place.key}" if place.key else ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Add the header to the one request."""
        if self._header:
            request.headers["Authorization"] = self._header
        yield request


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_ALLOWED = "Allowed are https://HOST[:PORT], and http://127.0.0.1:PORT on the same machine."
