"""Requests that are being answered, so that the erasure of their session ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kvrun.gateway.errors import GatewayError

_Key = tuple[str, str]


class RunningRequests:
    """The tasks of running requests by (tenant, session)."""

    def __init__(self) -> None:
        self._tasks: dict[_Key, set[asyncio.Task[None]]] = {}
        self._erased: set[asyncio.Task[None]] = set()

    @contextmanager
    def hold(self, tenant: str, session: str) -> Iterator[None]:
        """The current task answers a request of this session.

        Raises GatewayError 410 in it when the session is erased meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None
        tasks = self._tasks.setdefault((tenant, session), set())
        tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # The client may have left at the same moment: then nobody reads what is said here.
            if task not in self._erased or task.uncancel():
                raise
            raise GatewayError(
                "the session was erased while its request ran",
                status=410,
                code="session_erased",
            ) from None
        finally:
            self._erased.discard(task)
            tasks.discard(task)
            if not tasks and self._tasks.get((tenant, session)) is tasks:
                del self._tasks[tenant, session]

    def end(self, tenant: str, session: str) -> int:
        """End a session's requests; an empty session means all of the tenant's, an empty tenant
        everybody's. How many there were."""
        ended = 0
        for (whose, which), tasks in self._tasks.items():
            if (tenant and whose != tenant) or (session and which != session):
                continue
            for task in tasks - self._erased:
                self._erased.add(task)
                task.cancel()
                ended += 1
        return ended
