"""Gateways of the same deployment in other regions, for whom the policy does not allow this one.

A request goes there as the client sent it: the same body, credentials and identity headers, and
none of our stamps. It goes to regions alone that the daemon names, and once: one that comes from
another gateway goes no further.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from kvrun.config.gateway import GatewaySettings
from kvrun.errors import KvrunError
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.upstream import Engine, EngineAnswer, EngineUnavailableError

_VIA = b"kvrun-gateway"
_CREDENTIALS = ("authorization", "x-api-key")
_log = logging.getLogger("kvrun.gateway")

Headers = Sequence[tuple[bytes, bytes]]


class OtherGateways:
    """The other gateways, by region, in the order in which they are tried."""

    def __init__(
        self,
        gateways: Mapping[str, Engine],
        passed_on: Collection[str],
        on_routed: Callable[[str], None] = lambda region: None,
    ) -> None:
        """``passed_on``: names, in lower case, of the headers that a request keeps; ``on_routed``
        is told the region of each request that was answered there."""
        self._on_routed = on_routed
        self._gateways = dict(gateways)
        self._passed_on = frozenset(name.encode() for name in passed_on)

    @classmethod
    def of(cls, settings: GatewaySettings, on_routed: Callable[[str], None]) -> OtherGateways:
        """Those of the settings. Raises GatewayConfigError."""
        tls = _tls(settings.elsewhere_ca_file) if settings.elsewhere else None
        gateways = {
            region: _gateway(url, tls, settings) for region, url in settings.elsewhere.items()
        }
        identity = (settings.tenant_header.lower(), settings.session_header.lower())
        return cls(gateways, (*_CREDENTIALS, *identity), on_routed)

    async def open(self) -> None:
        """Begin to serve; no other gateway need be there yet."""
        for gateway in self._gateways.values():
            await gateway.open()

    async def close(self) -> None:
        """Close the kept connections."""
        for gateway in self._gateways.values():
            await gateway.close()

    def regions(self, error: KvrunError, headers: Headers) -> tuple[str, ...]:
        """Where a request may go that was refused with ``error``: none for any other refusal, and
        none for a request that comes from another gateway."""
        allowed = getattr(error, "elsewhere", ())
        if not allowed or any(
            name.lower() == b"via" and _VIA in value.lower() for name, value in headers
        ):
            return ()
        return tuple(region for region in self._gateways if region in allowed)

    async def request(
        self,
        regions: Sequence[str],
        method: str,
        path: str,
        request_id: str,
        body: bytes,
        traceparent: str,
        headers: Headers,
    ) -> EngineAnswer:
        """The answer of the first gateway that can be reached.

        Raises GatewayError 403 where none can, EngineTimeoutError.
        """
        more = self._more(headers)
        for region in regions:
            gateway = self._gateways[region]
            try:
                answer = await gateway.request(
                    method, path, request_id, body, traceparent, headers=more
                )
            except EngineUnavailableError:
                _log.warning("the gateway of region %s cannot be reached", region)
                continue
            self._on_routed(region)
            return answer
        raise GatewayError(
            "the residency policy does not allow this tenant here, and no gateway of a region that "
            f"it allows can be reached now ({', '.join(regions)})",
            status=403,
            code="residency_denied",
            hint="Ask again later, or a gateway of such a region.",
        )

    def _more(self, headers: Headers) -> bytes:
        lines = [b"via: 1.1 " + _VIA + b"\r\n"]
        for name, value in headers:
            if name.lower() in self._passed_on and not {10, 13} & {*value}:
                lines.append(b"%b: %b\r\n" % (name.lower(), value))
        return b"".join(lines)


def _gateway(url: str, tls: ssl.SSLContext | None, settings: GatewaySettings) -> Engine:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return Engine(
        f"http://{shown}:{port}",
        api_key=None,
        connect_timeout_s=settings.connect_timeout_s,
        response_timeout_s=settings.response_timeout_s,
        host=parts.netloc,
        tls=tls if secure else None,
    )


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise GatewayConfigError(
            f"gateway.elsewhere_ca_file {ca_file} cannot be read: {error}"
        ) from None
