"""SGLang's radix cache, governed: a page of it is reused only by a request that was admitted.

SGLang keeps its tree, its buffers and its scheduling. This subclass asks the daemon when it first
sees a request, holds the request back until the answer is there, says whose pages are whose, and
keeps what was not admitted out of the tree.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestOutcome
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import create_unified_radix_cache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.mem_cache.utils import get_storage_hash_str

from kvrun.engines.admission import State
from kvrun.engines.sglang.governance import EngineSettingError
from kvrun.engines.sglang.installed import require_supported_version
from kvrun.engines.sglang.rank import Rank, use_rank
from kvrun.engines.sglang.scrubbing import ScrubCalls
from kvrun.engines.sglang.zeroing import DeviceZeroing
from kvrun.instance.protocol import Scrub, page_owner

_log = logging.getLogger(__name__)


def governed_cache(context: Any) -> Any:
    """The radix cache of this scheduler process, and its connection to the daemon.

    Raises:
        KvrunError: an SGLang, a model or an option that kvrun does not serve, or no daemon.
    """
    require_supported_version()
    if context.is_hybrid_swa or context.is_hybrid_ssm:
        raise EngineSettingError(
            "the model has sliding-window or recurrent layers, whose caches are not governed",
            hint="serve models with full attention only",
        )
    window = int(context.model_config.context_len)
    use_rank(rank := Rank(context.server_args, window))
    DeviceZeroing(context.params.token_to_kv_pool_allocator)
    # Its own core is compiled, and does not tell whose a node is.
    context.params.tree_core_backend = "python"
    cache = create_unified_radix_cache(context, cache_class=KvrunRadixCache)
    assert isinstance(cache, KvrunRadixCache)
    cache.govern(rank)
    return cache


class KvrunRadixCache(UnifiedRadixCache):
    """The class behind ``--radix-cache-backend kvrun``."""

    _rank: Rank | None = None

    def govern(self, rank: Rank) -> None:
        """Serve admitted requests from now on. Raises EngineSettingError without the storage."""
        if not rank.connected:
            raise EngineSettingError(
                "SGLang made no storage backend of kvrun's",
                hint="start it with the options in docs/engines-sglang.md",
            )
        self._rank = rank
        self._running: dict[str, Any] = {}
        self._started: set[str] = set()
        self._scrubs = ScrubCalls(self._evict_scrubbed, self._held_pages)
        # SGLang compiles its hash when it is first used: before a request waits for it.
        self._hashes(array("q", range(self.page_size)), None, "warm-up")

    def match_prefix(self, params: Any) -> Any:
        """What the tree has for a request that may use it; nothing for any other."""
        req = params.req
        if req is None:
            # SGLang looks at what it has just inserted itself.
            return super().match_prefix(params)
        state = self._begin(req)
        if state is State.ADMITTED or (state is State.PENDING and self.enable_storage):
            # One that is pending is only looked at: until it is decided it is not scheduled.
            return super().match_prefix(params)
        req.skip_radix_cache_insert = True
        return self.tree_core.empty_match_result

    def check_prefetch_progress(self, request: Any) -> bool:
        """Whether a request can be scheduled: it is decided, and its pages are there or not."""
        rank = self._rank
        if rank is None:
            return False
        if rank.requests.state(request.rid) is State.PENDING:
            self._poll()
            if rank.requests.state(request.rid) is State.PENDING:
                return False
        return bool(super().check_prefetch_progress(request))

    def checkpoint(self, req: Any, *, up_to: int, **options: Any) -> None:
        """Put computed pages into the tree, and know them as the request's."""
        rank = self._rank
        if rank is None or rank.requests.state(req.rid) is not State.ADMITTED:
            # Admitted no longer, while it was on its way here.
            req.skip_radix_cache_insert = True
            if not req.finished():
                return
            super().on_release(req, checkpointed=False)
            return
        self._start(req)
        self._note(req, up_to)
        super().checkpoint(req, up_to=up_to, **options)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """A request gave its pages back: it ended, or waits to be computed again."""
        super().on_release(req, checkpointed=checkpointed)
        if self._rank is not None and req.finished():
            self._end(req.rid)

    def finish(self, handle: Any, outcome: Any) -> None:
        """An attempt of a request is over."""
        super().finish(handle, outcome)
        if outcome is CacheRequestOutcome.ABORT:
            self._end(handle.rid)

    def check_hicache_events(self) -> None:
        """Once a step: take in what the daemon said, and answer it."""
        self._poll()
        super().check_hicache_events()
        rank = self._rank
        if rank is not None:
            self._scrubs.connection(rank.admissions.connections)
            for report in self._scrubs.advance(rank.admissions.take_scrubs()):
                rank.admissions.report_scrub(report)

    def clear_storage_backend(self) -> bool:
        """False: what is sealed is erased through kvrun only."""
        _log.warning("the engine was asked to clear its storage; sealed pages stay: kvrun erase")
        return False

    def _begin(self, req: Any) -> State:
        rank = self._rank
        if rank is None:
            return State.DENIED
        if not rank.requests.known(req.rid):
            salt = req.cache_salt if req.extra_key is None else None
            prompt = req.origin_input_ids
            hashes = self._hashes(prompt, req.extra_key, salt) if salt else []
            rank.requests.begin(req.rid, salt, hashes, len(prompt))
        self._running[req.rid] = req
        return rank.requests.state(req.rid)

    def _hashes(self, tokens: Any, extra_key: str | None, salt: str | None) -> list[str]:
        key = RadixKey(tokens, extra_key=extra_key, cache_salt=salt).page_aligned(self.page_size)
        if not len(key):
            return []
        return list(get_storage_hash_str(key, None, page_size=self.page_size))

    def _note(self, req: Any, up_to: int) -> None:
        assert self._rank is not None
        if up_to // self.page_size > self._rank.requests.page_count(req.rid):
            tokens = req.full_untruncated_fill_ids[:up_to]
            self._rank.requests.note(req.rid, self._hashes(tokens, None, req.cache_salt))

    def _start(self, req: Any) -> None:
        """What it reused is settled when its first pages are computed."""
        assert self._rank is not None
        if req.rid not in self._started:
            self._started.add(req.rid)
            loaded = int(req.cached_tokens_host) + int(req.cached_tokens_storage)
            self._rank.requests.start(req.rid, int(req.cached_tokens_device), loaded)

    def _end(self, request_id: str) -> None:
        self._running.pop(request_id, None)
        self._started.discard(request_id)
        if self._rank is not None:
            self._rank.requests.finish(request_id)

    def _poll(self) -> None:
        if self._rank is None:
            return
        self._rank.blocks.idle()
        for request_id in self._rank.requests.poll():
            req = self._running.get(request_id)
            if req is not None:
                # What it computes from now on is its own, and goes when it goes.
                req.skip_radix_cache_insert = True

    def _evict_scrubbed(self, scrub: Scrub) -> int:
        """Take the pages of erased sessions out of the tree, which frees and zeroes them."""
        tracker = dict.fromkeys(self.tree_components, 0)
        evicted, again = 0, True
        while again:
            again = False
            for node in list(self._scrubbed_nodes(scrub)):
                if self.tree_core._is_device_leaf(node):
                    evicted += len(node.key) // self.page_size
                    self._evict_device_leaf(node.id, tracker)
                    again = True
        return evicted

    def _held_pages(self, scrub: Scrub) -> int:
        """Pages of erased sessions in the tree, and those of their requests that are not in it."""
        size = self.page_size
        held = sum(len(node.key) // size for node in self._scrubbed_nodes(scrub))
        for req in self._running.values():
            if req.kv.holds_kv and _concerns(scrub, req.cache_salt):
                held += -(-(req.kv.kv_allocated_len - req.kv.cache_protected_len) // size)
        return held

    def _scrubbed_nodes(self, scrub: Scrub) -> Iterator[Any]:
        """Nodes of erased sessions, children before their parents."""
        for top in list(self.tree_core.root_node.children.values()):
            if _concerns(scrub, top.key.cache_salt):
                yield from _postorder(top)


def _postorder(node: Any) -> list[Any]:
    order, todo = [], [node]
    while todo:
        node = todo.pop()
        order.append(node)
        todo.extend(node.children.values())
    return order[::-1]


def _concerns(scrub: Scrub, salt: str | None) -> bool:
    # Pages without a salt are of requests that nobody can name.
    return scrub.everything or not salt or page_owner(salt) in scrub.owners
