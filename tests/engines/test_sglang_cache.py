# ruff: noqa: E402  SGLang must be told what this machine lacks before it is imported
"""SGLang's own radix cache, pools and controller under kvrun, without a model."""

from __future__ import annotations

import atexit
import json
import os
import time
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
pytest.importorskip("sglang", reason="runs in scripts/sglang-venv.sh's environment")

import kvrun_sglang_cpu_shim
import torch

kvrun_sglang_cpu_shim.register()

from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    CacheRequestOutcome,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from kvrun.engines.admission import State
from kvrun.engines.sglang.governance import EngineSettingError
from kvrun.engines.sglang.radixcache import KvrunRadixCache, governed_cache
from kvrun.engines.sglang.storage import KvrunStorage
from kvrun.erasure.certificate import ErasureStatement
from kvrun.instance.protocol import Scrub, page_owner
from support.announcing import announced
from support.client import prompt
from support.daemon import Daemon

pytestmark = [pytest.mark.long, pytest.mark.real("SGLang"), pytest.mark.timeout(600)]

PAGE, PAGES, TOKENS = 16, 8, 1024


def server_args(daemon: Daemon, **changes: Any) -> ServerArgs:
    storage = {
        "backend_name": "kvrun",
        "module_path": "kvrun.engines.sglang.storage",
        "class_name": "KvrunStorage",
        "interface_v1": 1,
        "prefetch_threshold": PAGE,
        "kvrun.socket": str(daemon.socket),
        "kvrun.model_fingerprint": "ab" * 32,
    }
    return ServerArgs(
        **{
            "model_path": "dummy",
            "page_size": PAGE,
            "device": "cpu",
            "disable_overlap_schedule": True,
            "enable_hierarchical_cache": True,
            "hicache_ratio": 2.0,
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "page_first_direct",
            "hicache_write_policy": "write_through",
            "hicache_host_memory_mode": "buffer_only",
            "hicache_storage_backend": "dynamic",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend_extra_config": json.dumps(storage),
            **changes,
        }
    )


class Rig:
    """One scheduler's cache, made as SGLang makes it."""

    def __init__(self, daemon: Daemon, **changes: Any) -> None:
        args = server_args(daemon, **changes)
        set_global_server_args_for_scheduler(args)
        self.pool = MHATokenToKVPool(
            size=TOKENS,
            page_size=PAGE,
            dtype=torch.bfloat16,
            head_num=2,
            head_dim=32,
            layer_num=4,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator = PagedTokenToKVPoolAllocator(
            size=TOKENS,
            page_size=PAGE,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=self.pool,
            need_sort=False,
        )
        params = CacheInitParams(
            req_to_token_pool=ReqToTokenPool(
                size=8, max_context_len=2048, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            disable=False,
        )
        self.parallel = get_parallel().override(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_tp_rank=0, attn_tp_size=1
        )
        self.parallel.__enter__()
        context = SimpleNamespace(
            server_args=args,
            params=params,
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            enable_hierarchical_cache=True,
            model_config=SimpleNamespace(context_len=2048),
            tp_worker=SimpleNamespace(register_hicache_layer_transfer_counter=lambda counter: None),
            full_tokens_per_layer=None,
        )
        self.daemon, self.made = daemon, 0
        self.cache: KvrunRadixCache = governed_cache(context)
        atexit.unregister(self.cache.shutdown)

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [*self.pool.k_buffer, *self.pool.v_buffer]

    def request(self, salt: str | None, tokens: list[int], extra_key: str | None = None) -> Any:
        """A request in the waiting queue, as far as the cache looks at it."""
        self.made += 1
        return SimpleNamespace(
            rid=f"r{self.made}",
            cache_salt=salt,
            extra_key=extra_key,
            origin_input_ids=array("q", tokens),
            skip_radix_cache_insert=False,
            session=None,
            finished=lambda: True,
            kv=SimpleNamespace(holds_kv=False, kv_allocated_len=0, cache_protected_len=0),
        )

    def match(self, request: Any) -> int:
        """How much of its prompt the tree gives it."""
        key = RadixKey(
            request.origin_input_ids,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
        )
        return int(
            self.cache.match_prefix(MatchPrefixParams(key=key, req=request)).device_prefix_len
        )

    def decided(self, request: Any) -> State:
        assert self.cache._rank is not None
        self.until(lambda: self.cache._rank.requests.state(request.rid) is not State.PENDING)
        return self.cache._rank.requests.state(request.rid)

    def compute(self, request: Any) -> torch.Tensor:
        """Fill pages with something and put them into the tree; their rows."""
        rows = self.allocator.alloc(PAGES * PAGE).to(torch.int64)
        for buffer in self.buffers:
            buffer[rows] = torch.randn(len(rows), 2, 32).to(torch.bfloat16)
        request.full_untruncated_fill_ids = request.origin_input_ids
        key = RadixKey(request.origin_input_ids, cache_salt=request.cache_salt)
        self.cache.insert(InsertParams(key=key.page_aligned(PAGE), value=rows, prev_prefix_len=0))
        return rows

    def until(self, holds: Any, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline
            self.cache.check_hicache_events()
            time.sleep(0.01)

    def admitted(self, tenant: str, tokens: list[int]) -> tuple[str, Any]:
        request_id, granted = announced(self.daemon, tenant)
        request = self.request(granted.salt, tokens)
        self.match(request)
        assert self.decided(request) is State.ADMITTED
        return request_id, request

    def stored(self, tenant: str, tokens: list[int]) -> tuple[Any, torch.Tensor]:
        """A request whose pages are in the tree and sealed."""
        request_id, request = self.admitted(tenant, tokens)
        rows = self.compute(request)
        self.until(lambda: self.daemon.reuse(request_id).sealed_blocks >= PAGES)
        self.cache.on_release(request, checkpointed=True)
        # The copies to host memory hold the pages until they are acknowledged.
        self.until(lambda: self.cache.protected_size() == 0)
        return request, rows

    def filled(self, rows: torch.Tensor) -> bool:
        return all(bool(buffer[rows].any()) for buffer in self.buffers)

    def empty(self, rows: torch.Tensor) -> bool:
        return not any(bool(buffer[rows].any()) for buffer in self.buffers)


@pytest.fixture(scope="module")
def rig(daemon: Daemon) -> Iterator[Rig]:
    made = Rig(daemon)
    yield made
    assert made.cache._rank is not None
    made.cache._rank.close()


def fetch(rig: Rig, request: Any) -> int:
    """Have SGLang look in its storage; how many tokens came to the host buffer."""
    handle = CacheRequestHandle(request.rid, 0)
    match = rig.cache.match_prefix(
        MatchPrefixParams(
            key=RadixKey(request.origin_input_ids, cache_salt=request.cache_salt), req=request
        )
    )
    rig.cache.prefetch_from_storage(
        handle,
        match.last_host_node,
        request.origin_input_ids,
        None,
        None,
        matched_prefix_tokens=[],
        cache_salt=request.cache_salt,
    )
    rig.until(lambda: rig.cache.check_prefetch_progress(handle))
    loaded = int(rig.cache.pop_prefetch_loaded_tokens(handle))
    staged = rig.cache.buffer_pipeline.has_staged(handle)
    rig.cache.finish(handle, CacheRequestOutcome.ABORT)
    return max(loaded, PAGES * PAGE if staged else 0)


def test_the_tree_serves_a_session_its_own_pages_only(rig: Rig) -> None:
    tokens = prompt(1, PAGES * PAGE)
    rig.stored("alice", tokens)
    _, again = rig.admitted("alice", tokens)
    _, stranger = rig.admitted("bob", tokens)
    assert rig.match(again) == PAGES * PAGE
    assert rig.match(stranger) == 0
    assert fetch(rig, stranger) == 0


def test_a_request_without_an_admission_gets_nothing_and_leaves_nothing(rig: Rig) -> None:
    tokens = prompt(2, PAGES * PAGE)
    owner, _ = rig.stored("alice", tokens)
    _, granted = announced(rig.daemon, "alice", claim="kvc1.forged")
    for denied in (
        rig.request(granted.salt, tokens),
        rig.request(None, tokens),
        rig.request(granted.salt, tokens, extra_key="mine"),
    ):
        rig.match(denied)
        assert rig.decided(denied) is State.DENIED
        assert rig.match(denied) == 0
        assert denied.skip_radix_cache_insert
    assert owner.cache_salt == granted.salt


def test_an_undecided_request_is_not_scheduled(rig: Rig) -> None:
    _, granted = announced(rig.daemon, "alice", claim="kvc1.forged")
    request = rig.request(granted.salt, prompt(3, PAGES * PAGE))
    rig.daemon.pause()
    try:
        rig.match(request)
        assert not rig.cache.check_prefetch_progress(CacheRequestHandle(request.rid, 0))
    finally:
        rig.daemon.resume()
    rig.until(lambda: rig.cache.check_prefetch_progress(CacheRequestHandle(request.rid, 0)))


def test_sealed_pages_come_back_to_their_session_after_the_tree_was_emptied(rig: Rig) -> None:
    tokens = prompt(4, PAGES * PAGE)
    rig.stored("alice", tokens)
    rig.cache.reset()
    rig.allocator.clear()
    assert not any(bool(buffer.any()) for buffer in rig.buffers)
    _, stranger = rig.admitted("bob", tokens)
    assert fetch(rig, stranger) == 0
    _, again = rig.admitted("alice", tokens)
    assert fetch(rig, again) == PAGES * PAGE


def test_a_scrub_zeroes_the_pages_of_its_session_and_of_no_other(rig: Rig) -> None:
    mine, hers = prompt(5, PAGES * PAGE), prompt(6, PAGES * PAGE)
    alice, of_alice = rig.stored("erased", mine)
    bob, of_bob = rig.stored("kept", hers)
    assert rig.filled(of_alice)
    assert rig.filled(of_bob)
    scrub = Scrub(5, (page_owner(alice.cache_salt),))
    assert rig.cache._held_pages(scrub) == PAGES
    assert rig.cache._evict_scrubbed(scrub) == PAGES
    assert rig.cache._held_pages(scrub) == 0
    assert rig.empty(of_alice)
    assert rig.filled(of_bob)
    assert bob.cache_salt != alice.cache_salt


def test_the_daemons_own_question_is_answered_with_true_figures(rig: Rig) -> None:
    tokens = prompt(7, PAGES * PAGE)
    _, rows = rig.stored("asked", tokens)
    import threading

    done: list[ErasureStatement] = []
    thread = threading.Thread(target=lambda: done.append(rig.daemon.erase_session("asked")))
    thread.start()
    rig.until(lambda: not thread.is_alive())
    rig.until(lambda: rig.daemon.confirmed(done[0]))
    assert rig.empty(rows)


def test_what_a_running_request_holds_is_counted_until_it_lets_go(rig: Rig) -> None:
    _, request = rig.admitted("holding", prompt(8, PAGES * PAGE))
    rows = rig.allocator.alloc(2 * PAGE).to(torch.int64)
    for buffer in rig.buffers:
        buffer[rows] = 1.0
    request.kv = SimpleNamespace(holds_kv=True, kv_allocated_len=2 * PAGE, cache_protected_len=0)
    scrub = Scrub(6, (page_owner(request.cache_salt),))
    assert rig.cache._evict_scrubbed(scrub) == 0
    assert rig.cache._held_pages(scrub) == 2
    rig.allocator.free(rows)
    rig.cache.on_release(request, checkpointed=True)
    assert rig.cache._held_pages(scrub) == 0
    assert rig.empty(rows)


def test_the_host_buffer_holds_nothing_when_nothing_is_under_way(rig: Rig) -> None:
    rig.stored("buffer", prompt(9, PAGES * PAGE))
    pool = rig.cache.cache_controller.mem_pool_host
    pages = getattr(pool, "kv_buffer", None)
    if pages is None:
        pages = rig.cache.cache_controller.storage_backend.mem_pool_host.kv_buffer
    rig.until(lambda: not bool(pages.any()))


def test_a_storage_without_the_radix_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvrun.engines.sglang import rank

    monkeypatch.setattr(rank, "_current", [])
    with pytest.raises(EngineSettingError, match="without kvrun's radix cache"):
        KvrunStorage(None)
