"""Request handles: the only thing that opens or seals blocks.

A handle is a random number given for one verified claim. It carries the session's keys, the
session's blocks in the cache and what the request reused. It ends with the request, with its
session's key, or with the engine's connection.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from kvrun.cache.events import Tier
from kvrun.cache.session import CacheSession
from kvrun.instance.blocks import SessionBlocks
from kvrun.instance.in_order import InOrder
from kvrun.instance.totals import Totals
from kvrun.keys.session import SessionKeys
from kvrun.policy.compile import BUILTIN_PLACEMENT, Placement

_LINGER_S = 30.0


class Reuse(msgspec.Struct):
    """What one request of a client reused, in prompt tokens that the engine did not compute."""

    request_id: str
    prompt_tokens: int = 0
    engine_tokens: int = 0
    memory_tokens: int = 0
    disk_tokens: int = 0
    object_tokens: int = 0
    sealed_blocks: int = 0
    failed_blocks: int = 0
    denied: str = ""


@dataclass(slots=True)
class Handle:
    """One admitted request of the engine."""

    number: int
    request_id: str
    keys: SessionKeys
    blocks: SessionBlocks
    cache: CacheSession
    reuse: Reuse
    pinned: list[bytes] = field(default_factory=list)
    opened: dict[tuple[int, int], Tier] = field(default_factory=dict)
    started: bool = False
    finished_at: float | None = None
    revoked: bool = False
    traceparent: str = ""
    publishing: InOrder = field(default_factory=InOrder)
    chains: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)
    placement: Placement = BUILTIN_PLACEMENT

    @property
    def tenant_ref(self) -> str:
        """The tenant's pseudonym in log and Storage."""
        return self.keys.tenant_ref

    @property
    def session_ref(self) -> str:
        """The session's pseudonym in log and Storage."""
        return self.keys.session_ref

    def end(self) -> None:
        """The request is over: let its blocks be evicted again, and its session's packs written."""
        self.unpin()
        self.cache.end(self.number)

    def unpin(self) -> None:
        """Let the request's blocks be evicted again."""
        pinned, self.pinned = self.pinned, []
        if pinned:
            self.cache.unpin(pinned)

    def note_name(self, group: int, rank: int, index: int, name: bytes) -> bytes | None:
        """Block ``index`` of a group and rank has this name; that of the one before, if known."""
        chain = self.chains.setdefault((group, rank), {})
        chain[index] = name
        return chain.get(index - 1)

    def note_opened(self, group: int, index: int, tier: Tier) -> None:
        """Block ``index`` of a group was opened from a tier for this request."""
        if not self.started:
            self.opened[group, index] = tier

    def start(
        self, engine_tokens: int, loaded_tokens: int, tokens_per_block: Sequence[int]
    ) -> tuple[int, int, int, int]:
        """The engine computes the rest of the prompt: what it reused is settled now, once.

        Blocks that were opened in vain, because another block of the load failed, do not count,
        and no more tokens count as loaded than opened blocks reach. Returns the tokens that it
        reused of the engine, of memory, of disk and of Storage.
        """
        if self.started:
            return 0, 0, 0, 0
        self.started = True
        opened, self.opened = dict(self.opened), {}
        reach = max(((i + 1) * tokens_per_block[g] for g, i in opened), default=0)
        loaded = max(0, min(loaded_tokens, reach - engine_tokens))
        below = {
            tier: max(
                (
                    tokens * sum(1 for (g, _), t in opened.items() if g == group and t is tier)
                    for group, tokens in enumerate(tokens_per_block)
                ),
                default=0,
            )
            for tier in (Tier.DISK, Tier.OBJECT)
        }
        objects = min(loaded, below[Tier.OBJECT])
        disk = min(loaded - objects, below[Tier.DISK])
        memory = loaded - objects - disk
        self.reuse.engine_tokens += engine_tokens
        self.reuse.memory_tokens += memory
        self.reuse.disk_tokens += disk
        self.reuse.object_tokens += objects
        return engine_tokens, memory, disk, objects


class HandleTable:
    """Every live handle, a bounded memory of what past requests reused, and totals."""

    def __init__(self, *, remember: int = 2048) -> None:
        self.totals = Totals()
        self._lock = threading.Lock()
        self._handles: dict[int, Handle] = {}
        self._reuse: OrderedDict[str, Reuse] = OrderedDict()
        self._remember = remember

    def add(
        self, request_id: str, keys: SessionKeys, blocks: SessionBlocks, cache: CacheSession
    ) -> Handle:
        """A new handle with an unguessable number."""
        with self._lock:
            number = secrets.randbits(62) | 1
            reuse = self._reuse_of(request_id)
            handle = Handle(number, request_id, keys, blocks, cache, reuse)
            self._handles[number] = handle
            return handle

    def live(self, number: int) -> Handle | None:
        """The handle, unless it ended or its session's key may not be used any more."""
        handle = self._handles.get(number)
        if handle is None or handle.revoked or handle.keys.ended:
            return None
        return handle

    def finish(self, number: int, now: float) -> Handle | None:
        """Mark a handle's request as ended; its late stores may still come for a while."""
        with self._lock:
            handle = self._handles.get(number)
            if handle is not None:
                handle.finished_at = now
            return handle

    def forget_finished(self, now: float) -> None:
        """End the handles whose requests finished too long ago for late stores."""
        with self._lock:
            over = [handle for handle in self._handles.values() if _is_over(handle, now)]
            for handle in over:
                del self._handles[handle.number]
        for handle in over:
            # A question that was under way when the request ended may have pinned once more.
            handle.unpin()

    def revoke(self, covers: Callable[[str, str], bool]) -> list[Handle]:
        """End every handle whose tenant and session ``covers`` says yes to."""
        with self._lock:
            ended = [
                handle
                for handle in self._handles.values()
                if covers(handle.keys.scope.tenant, handle.keys.scope.session)
            ]
            for handle in ended:
                handle.revoked = True
                del self._handles[handle.number]
            return ended

    def revoke_destroyed(self) -> list[Handle]:
        """End every handle whose session's key is gone."""
        with self._lock:
            ended = [handle for handle in self._handles.values() if handle.keys.destroyed]
            for handle in ended:
                handle.revoked = True
                del self._handles[handle.number]
            return ended

    def clear(self) -> list[Handle]:
        """End all handles: the engine is gone."""
        with self._lock:
            ended = list(self._handles.values())
            self._handles.clear()
            for handle in ended:
                handle.revoked = True
            return ended

    def deny(self, request_id: str, reason: str) -> None:
        """Remember that a request was not admitted."""
        with self._lock:
            self._reuse_of(request_id).denied = reason

    def reuse(self, request_id: str) -> Reuse | None:
        """What a request of a client reused, if it is still remembered."""
        return self._reuse.get(request_id)

    def __iter__(self) -> Iterator[Handle]:
        with self._lock:
            return iter(list(self._handles.values()))

    def __len__(self) -> int:
        return len(self._handles)

    def _reuse_of(self, request_id: str) -> Reuse:
        reuse = self._reuse.get(request_id)
        if reuse is None:
            reuse = self._reuse[request_id] = Reuse(request_id)
            while len(self._reuse) > self._remember:
                self._reuse.popitem(last=False)
        return reuse


def _is_over(handle: Handle, now: float) -> bool:
    return handle.finished_at is not None and now - handle.finished_at > _LINGER_S
