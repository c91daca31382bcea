"""Mail from the daemon reaches an engine that has nothing to do.

An engine without requests sleeps, and calls no adapter then. A thread looks for mail and calls
what wakes it, or what answers in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_EVERY_S = 0.02


class MailWaker:
    """Calls ``wake`` while ``has_mail``, from a thread of its own, until it is closed."""

    def __init__(self, has_mail: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._has_mail = has_mail
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrun-mail", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            if self._has_mail():
                self._wake()
