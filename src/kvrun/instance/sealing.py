"""Worker threads that seal and open, pinned to CPUs, opening before sealing.

A request waits for an open, nobody waits for a seal. Opens therefore run at normal priority, seals
below it, so that sealing gives way to the engine's compute.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

# Not lower: a sealing thread holds the interpreter's lock between its long steps. At 19, beside an
# engine that kept every core busy, it was not run for 20 s, and nothing else in the daemon was.
_SEAL_NICENESS = 5
_log = logging.getLogger(__name__)

Task = Callable[[], None]


class SealingThreads:
    """Two small pools: one for opens, one for seals."""

    def __init__(self, threads: int, cpus: Sequence[int] | None = None) -> None:
        self.threads = threads
        self._cpus = list(cpus) if cpus is not None else sorted(os.sched_getaffinity(0))
        self._opens: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._seals: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._workers = [
            threading.Thread(
                target=self._run, args=(source, index, niceness), name=f"kvrun-{name}-{index}"
            )
            for name, source, niceness in (
                ("open", self._opens, 0),
                ("seal", self._seals, _SEAL_NICENESS),
            )
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

    def _run(self, source: queue.SimpleQueue[Task | None], index: int, niceness: int) -> None:
        thread_id = threading.get_native_id()
        # Unpinned threads of one process were seen to share a CPU while another stood idle.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread_id, {self._cpus[index % len(self._cpus)]})
        if niceness:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread_id, niceness)
        while (task := source.get()) is not None:
            try:
                task()
            except Exception:
                _log.exception("a sealing task failed")
