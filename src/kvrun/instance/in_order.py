"""Work that several threads finish in any order, concluded in the order in which it was begun."""

import threading
from collections import deque
from collections.abc import Callable


class Turn:
    """One piece of work; made by :meth:`InOrder.begin`."""

    __slots__ = ("conclude",)

    def __init__(self) -> None:
        self.conclude: Callable[[], None] | None = None


class InOrder:
    """Blocks of a prompt are listed head first, so that no tail is ever found without its head."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque()
        self._busy = False

    def begin(self) -> Turn:
        """Work begins. Its conclusion comes after those of all that began before."""
        turn = Turn()
        with self._lock:
            self._turns.append(turn)
        return turn

    def end(self, turn: Turn, conclude: Callable[[], None]) -> None:
        """The work is done; runs what can be concluded now. Never waits for another thread.

        Raises what the first of the conclusions raises that fails, after all of them.
        """
        with self._lock:
            turn.conclude = conclude
            if self._busy:
                return
            self._busy = True
        failure: BaseException | None = None
        while True:
            with self._lock:
                run = self._turns[0].conclude if self._turns else None
                if run is None:
                    self._busy = False
                    break
                self._turns.popleft()
            try:
                run()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure
