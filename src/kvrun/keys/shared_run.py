"""Work that is done for everyone who waits at once, like a group commit."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Job(Generic[Item, Result]):
    item: Item
    results: tuple[Result, ...] = ()
    error: BaseException | None = None
    done: bool = False


class SharedRun(Generic[Item, Result]):
    """Calls ``run`` with everything that was submitted while the run before was under way.

    ``run`` gives one result an item, in order; when it raises, all of its callers get the error.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        self._run = run
        self._waiting_lock = threading.Lock()
        self._run_lock = threading.Lock()
        self._waiting: list[_Job[Item, Result]] = []

    def submit(self, item: Item) -> Result:
        """The item's result, once a run that began after this call is over."""
        job = _Job[Item, Result](item)
        with self._waiting_lock:
            self._waiting.append(job)
        with self._run_lock:
            if not job.done:
                with self._waiting_lock:
                    batch, self._waiting = self._waiting, []
                self._run_batch(batch)
        if job.error is not None:
            raise job.error
        return job.results[0]

    def settle(self) -> None:
        """Wait until what was submitted before this call is done."""
        with self._waiting_lock:
            jobs = list(self._waiting)
        with self._run_lock:
            waiting = [job for job in jobs if not job.done]
            if waiting:
                with self._waiting_lock:
                    batch, self._waiting = self._waiting, []
                self._run_batch(batch)

    def _run_batch(self, batch: Sequence[_Job[Item, Result]]) -> None:
        try:
            results = self._run([job.item for job in batch])
            for job, result in zip(batch, results, strict=True):
                job.results = (result,)
        except BaseException as error:
            for job in batch:
                job.error = error
        finally:
            for job in batch:
                job.done = True
