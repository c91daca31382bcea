"""What several threads finish in any order is concluded in the order in which it began."""

import random
import threading

import pytest

from kvrun.instance.in_order import InOrder


def test_nothing_is_concluded_before_what_began_earlier():
    line, done = InOrder(), []
    first, second, third = line.begin(), line.begin(), line.begin()
    line.end(third, lambda: done.append(3))
    line.end(second, lambda: done.append(2))
    assert done == []
    line.end(first, lambda: done.append(1))
    assert done == [1, 2, 3]


def test_threads_conclude_in_order():
    line, done = InOrder(), []
    turns = [(number, line.begin()) for number in range(200)]
    random.Random(0).shuffle(turns)

    def end(share):
        for number, turn in share:
            line.end(turn, lambda number=number: done.append(number))

    threads = [threading.Thread(target=end, args=(turns[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == list(range(200))


def test_a_conclusion_that_fails_holds_nobody_up():
    line, done = InOrder(), []
    first, second = line.begin(), line.begin()

    def fail():
        raise RuntimeError("the log is gone")

    line.end(second, lambda: done.append(2))
    with pytest.raises(RuntimeError):
        line.end(first, fail)
    assert done == [2]
