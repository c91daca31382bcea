"""One scheduler process's share in the governed cache: who asks, and the way to the daemon.

SGLang makes the storage backend while it makes the radix cache, and gives neither the other. Both
find this process's rank here.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from kvrun.engines.admission import Admissions
from kvrun.engines.blocks import BlockIO
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.claims import AnnouncedClaims
from kvrun.engines.settings import START_TIMEOUT_S, find_daemon
from kvrun.engines.sglang.governance import (
    FINGERPRINT_KEY,
    SOCKET_KEY,
    EngineSettingError,
    check_engine,
    engine_fingerprint,
    storage_options,
)
from kvrun.engines.sglang.installed import require_supported_version
from kvrun.engines.sglang.requests import GovernedRequests
from kvrun.engines.waiting import AnnouncedAdmissions
from kvrun.instance.connection import Reconnector, make_hello
from kvrun.instance.protocol import GroupLayout, Hello, Role
from kvrun.process import leave_no_core

_current: list[Rank] = []


class Rank:
    """Made with the radix cache, connected when the storage knows SGLang's host pages."""

    def __init__(self, args: Any, context_window: int) -> None:
        """Raises KvrunError for an engine that kvrun does not serve."""
        check_engine(args)
        leave_no_core()
        self._args = args
        self._window = context_window
        self._options = storage_options(args)
        self._settings = find_daemon(
            self._options.get(SOCKET_KEY),
            self._options.get(FINGERPRINT_KEY),
            where=f"{SOCKET_KEY!r} of --hicache-storage-backend-extra-config",
        )
        self._admissions: Admissions | None = None
        self._requests: GovernedRequests | None = None
        self._blocks: BlockIO | None = None

    @property
    def connected(self) -> bool:
        """Whether the storage was made, and with it the connections."""
        return self._requests is not None

    @property
    def admissions(self) -> Admissions:
        """The scheduler's connection."""
        assert self._admissions is not None
        return self._admissions

    @property
    def requests(self) -> GovernedRequests:
        """Which request may do what."""
        assert self._requests is not None
        return self._requests

    @property
    def blocks(self) -> BlockIO:
        """Opening and sealing."""
        assert self._blocks is not None
        return self._blocks

    def connect(self, layout: str, page_tokens: int, page_bytes: int) -> None:
        """Say hello; ``layout`` describes a host page. Raises KvrunError without a daemon."""
        fingerprint = engine_fingerprint(self._args, layout, self._options)

        layers = f"sglang:{hashlib.sha256(layout.encode()).hexdigest()[:32]}"

        def hello(role: Role) -> Hello:
            scheduler = role is Role.SCHEDULER
            return make_hello(
                role,
                self._settings.token,
                f"sglang {require_supported_version()}",
                fingerprint=fingerprint,
                groups=(GroupLayout(page_tokens, 1, layers),),
                block_bytes=() if scheduler else (page_bytes,),
                context_window=self._window,
                scrubs=scheduler,
                announced=scheduler,
            )

        clock = time.monotonic
        search = Reconnector(self._settings.socket, hello(Role.SCHEDULER))
        claims = AnnouncedClaims()
        admissions = Admissions(search.first(START_TIMEOUT_S), search, clock, claims)
        finding = Reconnector(self._settings.socket, hello(Role.WORKER))
        channel = WorkerChannel(finding.first(START_TIMEOUT_S), finding)
        self._blocks = BlockIO(channel, (page_bytes,), clock)
        self._admissions = admissions
        waiting = AnnouncedAdmissions(admissions, claims, clock)
        self._requests = GovernedRequests(waiting, clock)

    def close(self) -> None:
        """End the connections; the engine goes on without the cache."""
        if self._admissions is not None:
            self._admissions.close()
        if self._blocks is not None:
            self._blocks.shut()


def use_rank(rank: Rank) -> None:
    """This process's rank from now on."""
    _current[:] = [rank]


def current_rank() -> Rank:
    """This process's rank.

    Raises:
        EngineSettingError: SGLang runs with another radix cache.
    """
    if not _current:
        raise EngineSettingError(
            "kvrun's storage was made without kvrun's radix cache: it would not know whose pages "
            "it gets",
            hint="start SGLang with --radix-cache-backend kvrun",
        )
    return _current[0]
