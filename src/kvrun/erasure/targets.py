"""What an erasure asks of processes that it does not control: engines that hold plaintext pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScrubOutcome:
    """Pages evicted from prefix caches, zeroed, and still held, over all engines that answered.

    ``unacknowledged`` names engines that did not confirm in time; ``notes`` what engines cannot do.
    """

    evicted: int = 0
    scrubbed: int = 0
    held: int = 0
    unacknowledged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class EngineScrubber(Protocol):
    """Reaches the engines of one instance."""

    def engines(self) -> list[int]:
        """Process ids of the engines that can scrub: connected ones, and ones known to run."""
        ...

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        """Have every engine scrub these owners' pages, and wait for as long as is allowed.

        ``engines`` were connected when the erasure began: one of them that still runs but is not
        connected has not confirmed. The same ``call`` may be given again.
        """
        ...

    def owed(self) -> list[bytes]:
        """Page owners whose keys expired, and that some engine has not confirmed yet."""
        ...

    def expect(
        self,
        call: int,
        owners: Sequence[bytes],
        pids: Sequence[int],
        *,
        everything: bool,
        before: ScrubOutcome,
    ) -> None:
        """Engines of these processes owe an answer from before the daemon was started.

        ``before`` is what was evicted and zeroed by then.
        """
        ...


class NoEngines:
    """No engine is connected: there are no pages."""

    def engines(self) -> list[int]:
        """None."""
        return []

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        """Nothing to do."""
        return ScrubOutcome()

    def owed(self) -> list[bytes]:
        """None."""
        return []

    def expect(
        self,
        call: int,
        owners: Sequence[bytes],
        pids: Sequence[int],
        *,
        everything: bool,
        before: ScrubOutcome,
    ) -> None:
        """Nobody will answer: the next daemon asks."""


class UnreachedEngines(NoEngines):
    """The daemon does not run, so no engine can be asked; ``running`` are known to run.

    ``owed`` are page owners that these had not confirmed when it stopped.
    """

    def __init__(self, running: Sequence[int] = (), owed: Sequence[bytes] = ()) -> None:
        self._running = list(running)
        self._owed = list(owed)

    def engines(self) -> list[int]:
        """Those that are known to run: the next daemon asks them."""
        return self._running

    def owed(self) -> list[bytes]:
        """See :class:`EngineScrubber`."""
        return self._owed

    def scrub(
        self, call: int, owners: Sequence[bytes], *, everything: bool, engines: Sequence[int]
    ) -> ScrubOutcome:
        """Nothing is done, and that is said."""
        return ScrubOutcome(
            unacknowledged=tuple(
                f"engine process {pid}: not asked, the daemon did not run" for pid in engines
            ),
            notes=(
                "Pages in engine memory: the daemon did not run, so no engine was asked. One that"
                " still ran then keeps them until it reuses them or ends.",
            ),
        )
