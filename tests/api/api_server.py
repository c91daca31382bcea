"""A control plane on a port of this machine, for clients that speak HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from kvrun.launch.readiness import free_port

if TYPE_CHECKING:
    from api_rig import World


@contextmanager
def serving(world: World) -> Iterator[str]:
    """Its address while it answers."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(world.app, port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
