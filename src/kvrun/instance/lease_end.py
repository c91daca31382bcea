"""What an instance does when its right to use keys ended: it lets go of what they opened."""

from __future__ import annotations

import logging
import secrets
import threading

from kvrun.erasure.targets import EngineScrubber
from kvrun.instance.instance import Instance
from kvrun.instance.transfers import Transfers

_DRAIN_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


class LeaseEnd:
    """Ends every request, zeroes staging, and has engines evict and zero all of their pages.

    Handles refuse before this is called. An engine that is not connected, or loses its connection
    before it has answered, is asked when it comes back.
    """

    def __init__(self, instance: Instance, transfers: Transfers, scrubber: EngineScrubber) -> None:
        self._instance = instance
        self._transfers = transfers
        self._scrubber = scrubber
        self.ended: list[int] = []
        """The requests that the last one ended: what is in flight for them may not be over."""

    def __call__(self, reason: str) -> None:
        """The lease ended for ``reason``; returns once requests are revoked."""
        _log.error("keys may not be used any more: %s", reason)
        self.ended = ended = self._instance.revoke(lambda _tenant, _session: True)
        self._instance.journal.lease_over(reason)
        threading.Thread(
            target=self._let_go, args=(ended,), name="kvrun-lease-end", daemon=True
        ).start()

    def _let_go(self, ended: list[int]) -> None:
        forced = self._transfers.drain(ended, _DRAIN_TIMEOUT_S)
        if forced:
            _log.warning("%d staging slots of a silent worker were zeroed", forced)
        outcome = self._scrubber.scrub(
            secrets.randbits(60), [], everything=True, engines=self._scrubber.engines()
        )
        _log.info(
            "engine pages: %d evicted, %d zeroed, %d held", outcome.evicted, outcome.scrubbed,
            outcome.held,
        )  # fmt: skip
        for problem in outcome.unacknowledged:
            _log.warning("engine pages are not confirmed to be zeroed: %s", problem)
