"""Mail from the daemon reaches an engine that has nothing to do.

An engine without requests sleeps, and calls no adapter then. A thread looks for mail and calls
what wakes it, or what answers in its place. It sleeps until there is some, and looks less and less
often while a busy engine leaves it: each look costs the engine's own threads their processor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_WAIT_S = 0.5
_SOON_S, _LATE_S = 0.02, 0.32


class MailWaker:
    """Calls ``wake`` while ``has_mail``, from a thread of its own, until it is closed.

    ``has_mail`` may wait for some as long as it is told, seconds.
    """

    def __init__(self, has_mail: Callable[[float], bool], wake: Callable[[], None]) -> None:
        self._has_mail = has_mail
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvrun-mail", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _run(self) -> None:
        pause_s = _SOON_S
        while not self._stop.wait(pause_s):
            if self._has_mail(0.0):
                pause_s = min(2 * pause_s, _LATE_S)
                self._wake()
            else:
                pause_s = _SOON_S
                if self._has_mail(_WAIT_S):
                    self._wake()
