"""What the queues behind the memory tier share: a bound in bytes, and one quiet thread.

What waits keeps its cells pinned, so it cannot be evicted before it was handled; the bytes that
wait are bounded, so that pins never fill the slab.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class BlockQueue(ABC):
    """A bounded queue. Methods named *_locked need the index lock that ``changed`` wraps."""

    def __init__(
        self,
        changed: threading.Condition,
        *,
        name: str,
        limit_bytes: int,
        now: Callable[[], float],
    ) -> None:
        """``name`` is the thread's; ``now`` is the store's clock."""
        self._changed = changed
        self._name = name
        self._limit_bytes = limit_bytes
        self._now = now
        self._in_flight = 0
        self._hurry = False
        self._stopping = False
        self._run_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.waiting_bytes = 0

    @abstractmethod
    def run_due(self) -> int:
        """Handles a part of what is due; returns how many blocks it took from the queue."""

    @abstractmethod
    def _anything_locked(self) -> bool:
        """Whether a block waits."""

    @abstractmethod
    def _run(self) -> None:
        """The thread's work, until it is stopping."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; what still waits is left."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def hurry_locked(self) -> None:
        """Handles what waits now instead of at its due time: memory is short."""
        if self._anything_locked() and not self._hurry:
            self._hurry = True
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Handles everything that waits; False when that took longer than ``timeout_s``."""
        with self._changed:
            self.hurry_locked()
        if self._thread is None:
            while self.run_due():
                pass
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._anything_locked() and not self._in_flight, timeout_s
            )

    def _handled(self, blocks: int, waiting_bytes: int) -> None:
        """So many blocks that were in flight are done; they waited with so many bytes."""
        with self._changed:
            self._in_flight -= blocks
            self.waiting_bytes -= waiting_bytes
            self._changed.notify_all()
