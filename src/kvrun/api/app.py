"""The application: every route below ``/api/v1``, guarded, with one background loop."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute

from kvrun import __version__
from kvrun.api import problems
from kvrun.api.background import Background
from kvrun.api.guard import Guard
from kvrun.api.routes import ROUTERS, health, metrics
from kvrun.api.services import Services

PREFIX = "/api/v1"
_DESCRIPTION = """\
The control plane of kvrun: people, deployments, erasures, certificates and audit logs.

Programs send `Authorization: Bearer API_KEY`. Browsers have a session cookie and send the
`csrf_token` of `GET /api/v1/me` as `X-CSRF-Token` with every request that changes something.
Errors are problem documents (RFC 9457). Lists come in pages: `next` is the next page's `cursor`.
"""
_ERRORS = (400, 401, 403, 404, 408, 409, 413, 422, 429, 503)


def create_app(services: Services, *, background: bool = True) -> FastAPI:
    """The application over open services; it closes them when it ends.

    ``background`` supervises deployments while it runs.
    """
    loop = Background(services) if background else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if loop is not None:
            loop.start()
        try:
            yield
        finally:
            if loop is not None:
                await loop.stop()
            services.close()

    app = _build(lifespan)
    app.state.services = services
    app.add_middleware(Guard, settings=services.settings)
    return app


def openapi_text() -> str:
    """The OpenAPI document as docs/openapi.json holds it."""
    return json.dumps(_build(None).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _build(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None) -> FastAPI:
    app = FastAPI(
        title="kvrun control plane",
        version=__version__,
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0"},
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.include_router(health.router)
    app.include_router(metrics.router)
    problems.install(app)
    described = app.openapi
    app.openapi = lambda: problems.describe(described(), _ERRORS)  # type: ignore[method-assign]
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
