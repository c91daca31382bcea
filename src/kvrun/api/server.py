"""Running the application as a process."""

import uvicorn
from starlette.types import ASGIApp

from kvrun.config.control import ControlSection
from kvrun.gateway.server import bind

_KEEP_ALIVE_S = 30
_SHUTDOWN_S = 5
_CONCURRENT = 512


def serve(settings: ControlSection, app: ASGIApp) -> None:
    """Serve until SIGTERM or SIGINT. Raises KvrunError for an address that cannot be bound."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        # A path may hold what no log should.
        access_log=False,
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONCURRENT,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    with bind(settings.host, settings.port) as listener:
        uvicorn.Server(config).run(sockets=[listener])
