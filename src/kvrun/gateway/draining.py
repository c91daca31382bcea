"""Refusing new requests while the deployment drains: a file says so, and is looked at now and then.

Whoever may write the gateway's state folder may drain it; requests that were let in go on.
"""

import time
from collections.abc import Callable
from pathlib import Path

from kvrun.gateway.errors import GatewayError

DRAINING_FILE = "draining"
LOOK_EVERY_S = 1.0
RETRY_AFTER_S = 30


class Drain:
    """Whether new requests are refused; a change counts a second later. ``folder`` None: never."""

    def __init__(self, folder: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / DRAINING_FILE if folder is not None else None
        self._clock = clock
        self._look_at = 0.0
        self._draining = False

    def check(self) -> None:
        """Raise GatewayError 503 while it drains."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._draining = self._path is not None and self._path.exists()
        if self._draining:
            raise GatewayError(
                "this deployment takes no new requests: it is being stopped",
                status=503,
                code="draining",
                retry_after_s=RETRY_AFTER_S,
            )
