"""Keeps a lease: asks for it again in the background and says when it ended."""

import logging
import threading
import time
from collections.abc import Callable

from kvrun.keys.errors import KeysError, RootRevokedError
from kvrun.keys.lease import MAX_LEASE_S, RENEWALS_A_LEASE, Lease

_WATCH_EVERY_S = 0.5
_log = logging.getLogger(__name__)


def boottime() -> float:
    """Seconds of CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    """One holder's lease under an authority.

    ``ask`` proves the right: it returns the seconds for which, or None for all of them. It raises
    KeysError when nobody answers (the lease runs on until its end) and RootRevokedError when the
    right was taken away (the lease ends now).
    ``ended`` is called once for each lease that ended, with the reason; ``began`` for each new one
    after that, and may refuse with KeysError. They never run at the same time, and in this order.
    """

    def __init__(
        self,
        ask: Callable[[], float | None],
        *,
        duration_s: float = MAX_LEASE_S,
        clock: Callable[[], float] = boottime,
        ended: Callable[[str], None],
        began: Callable[[Lease], None],
    ) -> None:
        self._ask = ask
        self._duration_s = duration_s
        self._clock = clock
        self._ended = ended
        self._began = began
        self._lock = threading.Lock()
        # Held from the decision to tell until it is told: an end that is told late would put away
        # the keys of the lease that began meanwhile.
        self._telling = threading.RLock()
        self._stop = threading.Event()
        self._told = False
        self._problem = ""
        asked_at = clock()
        self.lease = Lease(asked_at, self._granted(ask()))
        self._threads = [
            threading.Thread(target=run, name=f"kvrun-lease-{name}", daemon=True)
            for name, run in (("renew", self._keep_renewing), ("watch", self._keep_watching))
        ]

    def start(self) -> None:
        """Begin to renew and to watch."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; the lease runs out by itself."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def renew(self) -> bool:
        """Ask once; whether the lease holds afterwards. Callers need not call it."""
        asked_at = self._clock()
        try:
            granted_s = self._granted(self._ask())
        except RootRevokedError as error:
            with self._lock:
                self._problem = error.message
                self.lease.end()
            self.watch()
            return False
        except KeysError as error:
            self._problem = error.message
            _log.warning("the lease on keys could not be renewed: %s", error.message)
            self.watch()
            return self.lease.holds(self._clock())
        self.watch()  # an end that nobody was told of yet comes before any new beginning
        with self._lock:
            self._problem = ""
            if self.lease.renew(asked_at, self._clock(), granted_s):
                return True
        return self._begin_again(asked_at, granted_s)

    def watch(self) -> None:
        """Say so when the lease ended since the last look."""
        with self._telling:
            with self._lock:
                if self._told or self.lease.holds(self._clock()):
                    return
                self._told = True
                reason = self._problem or "it was not renewed in time"
            _log.warning("the lease on keys ended: %s", reason)
            self._ended(reason)

    def end(self, reason: str) -> None:
        """The right was taken away: the lease ends now."""
        with self._telling:  # also the one that begins just now
            with self._lock:
                self._problem = reason
                self.lease.end()
            self.watch()

    def _granted(self, seconds: float | None) -> float:
        return self._duration_s if seconds is None else min(seconds, self._duration_s)

    def _begin_again(self, asked_at: float, granted_s: float) -> bool:
        with self._telling:
            self.watch()
            fresh = Lease(asked_at, granted_s)
            try:
                self._began(fresh)
            except KeysError as error:
                self._problem = error.message
                _log.warning("keys cannot be used again yet: %s", error.message)
                return False
            with self._lock:
                self.lease, self._told = fresh, False
        _log.info("the lease on keys holds again")
        return True

    def _keep_renewing(self) -> None:
        while not self._stop.wait(self._duration_s / RENEWALS_A_LEASE):
            self._guarded(self.renew)

    def _keep_watching(self) -> None:
        # In short waits: a suspended process learns only on waking how late it is.
        while not self._stop.wait(min(_WATCH_EVERY_S, self._duration_s / 10)):
            self._guarded(self.watch)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:
            _log.exception("keeping the lease on keys failed")
