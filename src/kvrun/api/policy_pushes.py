"""Git hosts that say there is a push: their word makes somebody look, and nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kvrun.config.secret_file import read_secret
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError
from kvrun.policy.push import is_from_host
from kvrun.policy.setup import folder_of

PER_MINUTE = 60
_MAX_SENDERS = 1000
_log = logging.getLogger(__name__)


class PushRefusedError(KvrunError):
    """Nobody here shares a secret with the sender."""

    exit_code = 2
    status = 401


class TooManyPushesError(KvrunError):
    """The sender asks too often."""

    exit_code = 2
    status = 429


class PolicyPushes:
    """``now`` in seconds. Thread-safe."""

    def __init__(self, deployments: Deployments, now: Callable[[], float]) -> None:
        self._deployments = deployments
        self._now = now
        self._lock = threading.Lock()
        self._minute = float("-inf")
        self._counts: dict[str, int] = {}

    def take(self, sender: str, body: bytes, *, signature: str, token: str) -> int:
        """Ask for a look in each deployment whose secret the sender knows; how many there are.

        ``sender`` is an address, for the limit alone. Raises TooManyPushesError, PushRefusedError.
        """
        self._count(sender)
        asked = 0
        for deployment in self._deployments.list(deleted=False):
            try:
                config = self._deployments.config_of(deployment.id)
                path = config.residency.webhook_secret_file
                if path is None or config.residency.repository is None:
                    continue
                secret = read_secret(path, "residency.webhook_secret_file")
                if is_from_host(secret, body, signature=signature, token=token):
                    folder_of(config).ask_for_look()
                    asked += 1
            except KvrunError as error:
                _log.error("a push cannot be taken for %s: %s", deployment.id, error.message)
        if not asked:
            raise PushRefusedError(
                "the signature or token is none of a policy repository that is followed here",
                hint="residency.webhook_secret_file holds what the Git host must know.",
            )
        _log.info("a push to a policy repository was announced for %d deployments", asked)
        return asked

    def _count(self, sender: str) -> None:
        with self._lock:
            now = self._now()
            if not 0 <= now - self._minute < 60:
                self._minute = now
                self._counts.clear()
            # Beyond so many senders they share one count.
            key = sender if sender in self._counts or len(self._counts) < _MAX_SENDERS else ""
            self._counts[key] = self._counts.get(key, 0) + 1
            if self._counts[key] > PER_MINUTE:
                raise TooManyPushesError(
                    f"more than {PER_MINUTE} pushes a minute",
                    hint="The repository is looked at every residency.interval_s by itself.",
                )
