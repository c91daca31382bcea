"""Blocks that no model served now can use, removed a day after theirs served last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from kvrun.cache.retention import collect_foreign, collect_foreign_packs
from kvrun.cache.served import ServedModels, Span, within
from kvrun.cache.session import CacheSession
from kvrun.cache.state import CacheState

_AFTER_S = 24 * 3600.0
# By how much the clock of Storage may differ from ours.
_CLOCKS_S = 300.0
_STOP_S = 10.0
_log = logging.getLogger(__name__)


class ForeignBlocks:
    """Looks over all tiers once after a change of models, in a thread of its own.

    ``background`` off: in the caller's. What Storage does not answer is tried again. Packs are left
    alone unless ``alone``: another daemon's are of the model that was served there at that time.
    """

    def __init__(
        self, state: CacheState, served: ServedModels, *, background: bool, alone: bool
    ) -> None:
        self._state = state
        self._served = served
        self._alone = alone
        self._background = background
        self._done: tuple[Span, ...] = ()
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def serve(self, fingerprint: bytes) -> None:
        """An engine with this fingerprint is connected."""
        self._served.note(fingerprint, self._state.wall())

    def collect(self, sessions: Mapping[tuple[str, str], CacheSession]) -> None:
        """Begins to remove them, where there is anything to do; ``sessions`` are the opened ones.

        Returns at once where that is under way.
        """
        spans = self._served.foreign(self._state.wall(), _AFTER_S)
        if spans == self._done or not self._running.acquire(blocking=False):
            return
        if not self._background:
            self._collect(spans, sessions)
            return
        self._thread = threading.Thread(
            target=self._collect, args=(spans, sessions), name="kvrun-collect", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it did not come to is left for the next start."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _collect(
        self, spans: tuple[Span, ...], sessions: Mapping[tuple[str, str], CacheSession]
    ) -> None:
        try:
            collect_foreign(self._state, list(sessions.values()), self._unless_stopped(spans))
            packs = self._unless_stopped(spans, _CLOCKS_S)
            if not self._alone or collect_foreign_packs(self._state, sessions.keys(), packs):
                self._done = spans
        except _StoppedError:
            return
        except Exception:
            _log.exception("blocks of earlier models were not removed")
        finally:
            self._running.release()
        self._state.deliver()

    def _unless_stopped(
        self, spans: tuple[Span, ...], margin_s: float = 0.0
    ) -> Callable[[float], bool]:
        is_foreign = within(spans, margin_s)

        def asked(at: float) -> bool:
            if self._stopping:
                raise _StoppedError
            return is_foreign(at)

        return asked


class _StoppedError(Exception):
    """The store is being closed."""
