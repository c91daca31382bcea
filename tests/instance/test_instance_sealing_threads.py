"""The threads that seal and open: where they run, and that no task ends them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from kvrun.instance.sealing import SealingThreads

USABLE = sorted(os.sched_getaffinity(0))


def places(put: Callable[[Callable[[], None]], None], threads: int) -> list[set[int]]:
    """The CPUs on which each thread of a pool may run."""
    together = threading.Barrier(threads + 1)
    seen: list[set[int]] = []

    def look() -> None:
        seen.append(os.sched_getaffinity(0))
        together.wait(20)

    for _ in range(threads):
        put(look)
    together.wait(20)
    return sorted(seen, key=sorted)


@pytest.mark.parametrize("cpus", [[USABLE[0]], [USABLE[0], USABLE[-1]]], ids=["one", "two"])
def test_they_are_pinned_in_turn_to_the_cpus_that_are_named(cpus: list[int]) -> None:
    running = SealingThreads(2, cpus)
    try:
        expected = sorted([{cpus[0]}, {cpus[-1]}], key=sorted)
        assert places(running.open, 2) == expected
        assert places(running.seal, 2) == expected
    finally:
        running.close()


def test_unless_told_otherwise_they_run_anywhere() -> None:
    running = SealingThreads(1)
    try:
        assert places(running.open, 1) == [set(USABLE)]
        assert places(running.seal, 1) == [set(USABLE)]
    finally:
        running.close()


def test_a_task_that_fails_ends_no_thread() -> None:
    running = SealingThreads(1)
    try:
        running.seal(lambda: [][0])
        assert places(running.seal, 1) == [set(USABLE)]
    finally:
        running.close()
