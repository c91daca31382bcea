"""What the control plane does by itself: it looks after the deployments."""

import asyncio
import logging
from collections.abc import Callable

from kvrun.api.isolation_schedule import LOOK_EVERY_S, run_due
from kvrun.api.services import Services

_log = logging.getLogger(__name__)


class Background:
    """Runs supervision round after round in a thread; a failed round is logged, and the next comes.

    A round that is under way when the application stops is waited for: nothing is half-made.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; call it within the event loop."""
        tests = ("isolation self-tests", self._self_tests, LOOK_EVERY_S)
        for name, round_, period_s in (*self._services.rounds(), tests):
            self._tasks.append(asyncio.create_task(self._repeat(name, round_, period_s)))

    async def stop(self) -> None:
        """End after the rounds that are under way."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def _self_tests(self) -> None:
        run_due(self._services, self._stop.is_set)

    async def _repeat(self, name: str, round_: Callable[[], object], period_s: float) -> None:
        while not self._stop.is_set():
            try:
                await asyncio.to_thread(round_)
            except Exception:
                _log.exception("%s failed; it is tried again in %.0f s", name, period_s)
            try:
                await asyncio.wait_for(self._stop.wait(), period_s)
            except TimeoutError:
                continue
