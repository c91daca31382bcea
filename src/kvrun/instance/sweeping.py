"""Finding what a stricter policy left misplaced, and taking it away.

A pass looks at every session: one at once, and more when no request is left that began under
another revision, which may place blocks by it, until two in a row find nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from kvrun.cache.events import Tier
from kvrun.instance.instance import Instance
from kvrun.policy.compile import Placement

_log = logging.getLogger(__name__)
_TIERS = (Tier.MEMORY, Tier.DISK, Tier.OBJECT)
_CLEAN_PASSES = 2


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What passes since the revision came into force took away, by tier: blocks and bytes."""

    revision: str
    passes: int
    done: bool
    sessions: int
    blocks: dict[str, int]
    size_bytes: dict[str, int]


class Sweep:
    """Passes over the cache of an instance; ``pause`` waits a moment between sessions."""

    def __init__(self, instance: Instance, pause: Callable[[], None] = lambda: None) -> None:
        self._instance = instance
        self._pause = pause
        self._lock = threading.Lock()
        self._revision = instance.residency.revision
        self._clean_left = _CLEAN_PASSES
        self._passes = 0
        self._sessions = 0
        self._blocks: dict[str, int] = {}
        self._size_bytes: dict[str, int] = {}

    def begin(self) -> None:
        """The decisions changed: look at everything again."""
        with self._lock:
            self._revision = self._instance.residency.revision
            self._clean_left = _CLEAN_PASSES
            self._passes = self._sessions = 0
            self._blocks, self._size_bytes = {}, {}

    def run(self) -> int:
        """One pass, where one is due; the blocks that it took away."""
        with self._lock:
            if not self._clean_left:
                return 0
            revision, passes = self._revision, self._passes
        if passes and self._is_mixed(revision):
            return 0
        taken = sessions = 0
        for tenant_ref, session_ref in self._instance.cache.session_refs():
            placement = self._instance.residency.placement(tenant_ref)
            found = self._sweep(tenant_ref, session_ref, placement)
            taken += found
            sessions += found > 0
            self._pause()
        with self._lock:
            if revision != self._revision:
                return taken  # begun anew meanwhile
            self._passes += 1
            self._sessions += sessions
            if taken:
                self._clean_left = _CLEAN_PASSES
            elif not self._is_mixed(revision) and self._sees_storage():
                self._clean_left -= 1
        if taken:
            _log.info("%d blocks were where revision %s does not allow them", taken, revision)
        return taken

    def report(self) -> SweepReport:
        """What was taken away since the decisions changed last."""
        with self._lock:
            return SweepReport(
                revision=self._revision,
                passes=self._passes,
                done=not self._clean_left,
                sessions=self._sessions,
                blocks=dict(self._blocks),
                size_bytes=dict(self._size_bytes),
            )

    def _sweep(self, tenant_ref: str, session_ref: str, placement: Placement) -> int:
        taken = 0
        for tier in _TIERS:
            if placement.allows(tier):
                continue
            reason = f"residency: {placement.row[tier].code()}"
            blocks, size_bytes = self._instance.cache.leave(tenant_ref, session_ref, tier, reason)
            if blocks:
                name = tier.name.lower()
                with self._lock:
                    self._blocks[name] = self._blocks.get(name, 0) + blocks
                    self._size_bytes[name] = self._size_bytes.get(name, 0) + size_bytes
                taken += blocks
        return taken

    def _sees_storage(self) -> bool:
        """What is in a store that does not answer is looked for when it does again."""
        levels = self._instance.cache.levels()
        return levels.object_available or not levels.has_objects

    def _is_mixed(self, revision: str) -> bool:
        return any(handle.placement.revision != revision for handle in self._instance.handles)
