"""What an instance does when another one of its deployment had keys destroyed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kvrun.erasure.targets import ScrubOutcome
from kvrun.instance.lease_end import LeaseEnd
from kvrun.instance.scrubbing import SchedulerScrubber
from kvrun.instance.transfers import Transfers
from kvrun.keys.daemon_state import Pages

_DRAIN_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


class TakenKeyPages:
    """Zeroes staging, and has engines zero the pages; says so once they did.

    An engine that does not answer is asked when it comes back, and nothing is said until then.
    """

    def __init__(
        self,
        transfers: Transfers,
        scrubber: SchedulerScrubber,
        lease_end: LeaseEnd,
        *,
        stateless: bool,
    ) -> None:
        self._transfers = transfers
        self._scrubber = scrubber
        self._lease_end = lease_end
        self._stateless = stateless

    def __call__(
        self, ended: Sequence[int], owners: Sequence[bytes], tell: Callable[[Pages], None]
    ) -> None:
        """``ended`` are the requests that were revoked; ``tell`` may be called more than once."""
        # A lease that ended meanwhile, as in a process that stood still, ended requests too.
        forced = self._transfers.drain([*ended, *self._lease_end.ended], _DRAIN_TIMEOUT_S)
        if forced:
            _log.warning("%d staging slots of a silent worker were zeroed", forced)

        def said(found: ScrubOutcome) -> None:
            tell(Pages(found.evicted, found.scrubbed, found.held, list(found.notes)))

        # A stateless deployment does not know whose a page is.
        self._scrubber.expired(owners, everything=self._stateless, tell=said)
