"""Running the gateway as a process."""

import gc
import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.app import GatewayParts, build_proxy
from kvrun.gateway.asgi import AsgiApp
from kvrun.gateway.direct import DirectProtocol
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.proxy import GatewayProxy
from kvrun.process import harden_process
from kvrun.telemetry.traces import Tracing

BACKLOG = 2048
KEEP_ALIVE_S = 75
SHUTDOWN_S = 30


def run_gateway(
    settings: GatewaySettings,
    *,
    claim_key: Ed25519PrivateKey | None = None,
    token: str = "",
    labels: Mapping[str, str] | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    ``claim_key`` signs claims (else ``claim_key_file``), ``token`` is the launch token for the
    instance daemon, every metric carries ``labels``. Raises GatewayConfigError for settings that
    cannot work and for an address that cannot be bound.
    """
    parts = GatewayParts(settings, claim_key=claim_key, token=token)
    serve(settings, build_proxy(settings, parts, labels=labels, tracing=tracing))


def serve(settings: GatewaySettings, app: GatewayProxy) -> None:
    """Bind and serve an application that is already built, until SIGTERM or SIGINT."""
    forbid_dumps()
    serve_on(
        bind(settings.host, settings.port),
        app,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )


def serve_on(
    listener: socket.socket, app: AsgiApp, *, tls_cert: Path | None, tls_key: Path | None
) -> None:
    """Serve ``app`` on a listening socket until SIGTERM or SIGINT, with TLS where files are given.

    The application must answer ASGI's lifespan events.
    """
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=DirectProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises GatewayConfigError that names the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise GatewayConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Choose another port, or stop what uses this one.",
        ) from None
    listener.setblocking(False)
    return listener


def forbid_dumps() -> None:
    """No core dump and no ptrace by the same user: claims and keys pass through this process."""
    if not harden_process().not_dumpable:
        raise GatewayConfigError("the kernel refuses to switch off core dumps for this process")
