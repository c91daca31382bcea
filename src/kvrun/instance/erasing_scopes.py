"""Which scopes are being erased now: one after the other where they overlap, refused meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvrun.erasure.plan import ErasureScope

Told = Callable[[ErasureScope], None]


class ErasingScopes:
    """The scopes of running erasures. Thread-safe.

    ``on_refused(scope)`` is told when its opens and stores are refused, ``on_admitted(scope)`` when
    they no longer are.
    """

    def __init__(self, on_refused: Told, on_admitted: Told) -> None:
        self._on_refused = on_refused
        self._on_admitted = on_admitted
        self._changed = threading.Condition()
        self._running: list[ErasureScope] = []
        self._refused: tuple[ErasureScope, ...] = ()

    @contextmanager
    def still(self) -> Iterator[bool]:
        """Whether no erasure runs; none begins or ends within."""
        with self._changed:
            yield not self._running

    @contextmanager
    def alone(self, scope: ErasureScope) -> Iterator[None]:
        """Erasures that could reach the same session run one after the other."""
        with self._changed:
            while any(scope.overlaps(other) for other in self._running):
                self._changed.wait()
            self._running.append(scope)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(scope)
                self._changed.notify_all()

    def refuse(self, scope: ErasureScope) -> None:
        """From here on the scope's opens and stores are refused."""
        with self._changed:
            self._refused = (*self._refused, scope)
        self._on_refused(scope)

    def admit(self, scope: ErasureScope) -> None:
        """They are not refused any more; again does nothing."""
        with self._changed:
            refused = scope in self._refused
            self._refused = tuple(other for other in self._refused if other != scope)
        if refused:
            self._on_admitted(scope)

    def is_refused(self, tenant: str, session: str) -> bool:
        """Whether a session is being erased."""
        return any(scope.covers(tenant, session) for scope in self._refused)
