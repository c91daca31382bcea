"""Worker threads that seal and open: a pool each, so that no open waits behind a seal.

All run at normal priority and, unless told otherwise, on any CPU. A thread holds the interpreter's
lock between its long steps; where it is not run, nothing in the daemon is (ADR 0015).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)

Task = Callable[[], None]


class SealingThreads:
    """Two small pools: one for opens, one for seals; ``cpus`` pins their threads in turn."""

    def __init__(self, threads: int, cpus: Sequence[int] | None = None) -> None:
        self.threads = threads
        self._cpus = tuple(cpus or ())
        self._opens: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._seals: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._workers = [
            threading.Thread(target=self._run, args=(source, index), name=f"kvrun-{name}-{index}")
            for name, source in (("open", self._opens), ("seal", self._seals))
            for index in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    def open(self, task: Task) -> None:
        """Run a task that a request waits for."""
        self._opens.put(task)

    def seal(self, task: Task) -> None:
        """Run a task that nobody waits for."""
        self._seals.put(task)

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        for _ in range(self.threads):
            self._opens.put(None)
            self._seals.put(None)
        for worker in self._workers:
            worker.join()

    def _run(self, source: queue.SimpleQueue[Task | None], index: int) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(
                    threading.get_native_id(), {self._cpus[index % len(self._cpus)]}
                )
        while (task := source.get()) is not None:
            try:
                task()
            except Exception:
                _log.exception("a sealing task failed")
