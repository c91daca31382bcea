"""``KvrunScheduler`` and ``KvrunWorker``: TensorRT-LLM's KV cache connector, governed.

Interface-checked, not yet run on TensorRT-LLM. Nothing is promised that was not opened, nothing is
loaded or sealed without an admission, and every block of the engine is zeroed before it is freed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvrun.engines.admission import State
from kvrun.engines.blocks import OpenBlock
from kvrun.engines.tensorrt_llm.governance import check_engine
from kvrun.engines.tensorrt_llm.hub import Hub
from kvrun.engines.tensorrt_llm.interface import (
    LlmRequest,
    SchedulerOutput,
    Stream,
    connector_bases,
)
from kvrun.engines.tensorrt_llm.plan import NoSuchBlockError, RequestPlan
from kvrun.engines.tensorrt_llm.scrubbing import FinishedBlocks
from kvrun.engines.tensorrt_llm.tokens import block_hashes
from kvrun.engines.transfer import BlockRef
from kvrun.engines.wake import MailWaker
from kvrun.errors import KvrunError
from kvrun.instance.protocol import page_owner

if TYPE_CHECKING:
    from kvrun.engines.tensorrt_llm.interface import SchedulerInterface as SchedulerBase
    from kvrun.engines.tensorrt_llm.interface import WorkerInterface as WorkerBase
else:
    SchedulerBase, WorkerBase = connector_bases()

_OPEN_DEADLINE_S = 2.0
_POLL_S = 0.002
_log = logging.getLogger(__name__)


class BrokenPromiseError(KvrunError):
    """Tokens that the engine counts on are not there: going on would give a wrong answer."""


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """One step's copies: opened blocks to engine blocks, and (handle, ref, engine block)."""

    loads: tuple[tuple[OpenBlock, int], ...] = ()
    saves: tuple[tuple[int, BlockRef, int], ...] = ()


@dataclass(slots=True)
class _Rank:
    """What scheduler and worker of this process share."""

    hub: Hub | None = None
    finished: FinishedBlocks = field(default_factory=FinishedBlocks)
    answer_scrubs: Callable[[Hub], None] = lambda hub: None


_rank = _Rank()


class KvrunWorker(WorkerBase):
    """The class that ``connector_worker_class`` names."""

    def __init__(self, llm_args: Any) -> None:
        check_engine(llm_args)
        super().__init__(llm_args)

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Connect to the daemon. Raises KvrunError without one."""
        if _rank.hub is not None:
            _rank.hub.close()
        _log.warning("kvrun's connector is interface-checked, not yet run on TensorRT-LLM")
        _rank.hub = Hub(self._llm_args, kv_cache_tensor)
        _rank.finished = FinishedBlocks()

    def start_load_kv(self, stream: Stream) -> None:
        """Copy opened blocks to their places; complete on return."""
        metadata, hub = self._metadata, _rank.hub
        if not isinstance(metadata, StepMetadata) or hub is None or not metadata.loads:
            return
        opened = [block for block, _ in metadata.loads]
        whole = all(map(hub.blocks.holds, opened))
        if whole:
            hub.scatter([(block.slot, page) for block, page in metadata.loads])
            # A daemon that zeroes slots under a process that stood still hangs up before it does.
            whole = all(map(hub.blocks.holds, opened))
        hub.blocks.close(opened)
        if not whole:
            raise BrokenPromiseError(
                "the instance daemon went away between opening blocks and their use",
                hint="the engine must not go on with KV that it does not have; restart it",
            )

    def wait_for_layer_load(self, layer_idx: int, stream: Stream) -> None:
        """Nothing: loads are complete before the first layer."""

    def save_kv_layer(self, layer_idx: int, stream: Stream) -> None:
        """Nothing: a block is sealed whole, over all layers."""

    def wait_for_save(self, stream: Stream) -> None:
        """Copy whole blocks to staging; sealing goes on in the daemon."""
        metadata, hub = self._metadata, _rank.hub
        if not isinstance(metadata, StepMetadata) or hub is None or not metadata.saves:
            return
        stream.synchronize()
        by_handle: dict[int, list[tuple[BlockRef, int]]] = {}
        for handle, ref, page in metadata.saves:
            by_handle.setdefault(handle, []).append((ref, page))
        for handle, pairs in by_handle.items():
            pages = [page for _, page in pairs]
            hub.blocks.seal(handle, [ref for ref, _ in pairs], _Gather(hub, pages))

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Zero the blocks of requests that ended, so that they can be freed."""
        hub = _rank.hub
        if hub is not None:
            with hub.lock:
                pages = _rank.finished.pages(finished_gen_req_ids)
                if pages:
                    hub.zero(pages)
                _rank.finished.zeroed(finished_gen_req_ids)
                _rank.answer_scrubs(hub)
        return list(finished_gen_req_ids), list(started_loading_req_ids)


class KvrunScheduler(SchedulerBase):
    """The class that ``connector_scheduler_class`` names; TensorRT-LLM makes it on rank 0."""

    def __init__(self, llm_args: Any) -> None:
        check_engine(llm_args)
        super().__init__(llm_args)
        self._plans: dict[int, RequestPlan] = {}
        self._waker: MailWaker | None = None
        _rank.answer_scrubs = self._answer_scrubs

    def get_num_new_matched_tokens(
        self, request: LlmRequest, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Open what the session has of the prompt, and promise exactly that."""
        hub = _rank.hub
        if hub is None:
            return 0, False
        self._watch_mail(hub)
        size = hub.tokens_per_block
        tokens = list(request.get_tokens(0))
        name = str(request.request_id)
        with hub.lock:
            hub.requests.poll()
            hashes = block_hashes(tokens, size)
            hub.requests.begin(name, _salt_of(request), hashes, len(tokens))
            self._wait(hub, name)
            admission = hub.requests.get(name)
            plan = self._plans[request.request_id] = RequestPlan(
                page_owner(hub.requests.salt(name)) if hub.requests.salt(name) else b""
            )
            if admission is None or not admission.may_store or num_computed_tokens % size:
                return 0, False
            # One token at least is computed: its logits are the answer's beginning.
            first, last = num_computed_tokens // size, (len(tokens) - 1) // size
            refs = []
            for index in range(first, last):
                if not admission.tier(0, index):
                    break
                refs.append(BlockRef(hashes[index], 0, index))
            opened: list[OpenBlock] = []
            results = hub.blocks.open(admission.handle, refs, _OPEN_DEADLINE_S) if refs else []
            for block in results:
                if block is None:
                    break
                opened.append(block)
            hub.blocks.close(b for b in results[len(opened) :] if b is not None)
            plan.first_loaded, plan.loading = first, opened
            plan.sealed = first + len(opened)
            hub.admissions.start(name, num_computed_tokens, len(opened) * size)
            return len(opened) * size, False

    def update_state_after_alloc(self, request: LlmRequest, block_ids: list[int]) -> None:
        """The request has these blocks."""
        plan = self._plans.get(request.request_id)
        if plan is not None:
            plan.allocated(block_ids)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> object:
        """This step's loads and saves. Raises BrokenPromiseError rather than leave one out."""
        hub = _rank.hub
        if hub is None:
            return StepMetadata()
        loads: list[tuple[OpenBlock, int]] = []
        saves: list[tuple[int, BlockRef, int]] = []
        with hub.lock:
            hub.requests.poll()
            for data, first in [
                *((data, True) for data in scheduler_output.new_requests),
                *((data, False) for data in scheduler_output.cached_requests),
            ]:
                plan = self._plans.get(data.request_id)
                if plan is None:
                    continue
                plan.step(
                    data.new_tokens,
                    data.new_block_ids,
                    data.computed_position,
                    data.num_scheduled_tokens,
                    first=first,
                )
                try:
                    loads += plan.loads()
                except NoSuchBlockError as error:
                    raise BrokenPromiseError(
                        str(error), hint="serve models with full attention only"
                    ) from error
                saves += self._saves(hub, str(data.request_id), plan)
            self._answer_scrubs(hub)
        return StepMetadata(tuple(loads), tuple(saves))

    def request_finished(self, request: LlmRequest, cache_block_ids: list[int]) -> bool:
        """True: the worker zeroes the blocks before they are freed."""
        hub = _rank.hub
        if hub is None:
            return False
        with hub.lock:
            plan = self._plans.pop(request.request_id, None)
            if plan is not None:
                hub.blocks.close(plan.loading)
            owner = plan.owner if plan is not None else b""
            pages = [block for block in cache_block_ids if block >= 0]
            _rank.finished.ended(request.request_id, owner, pages)
            hub.requests.finish(str(request.request_id))
        return bool(pages)

    def close(self) -> None:
        """End the connection to the daemon; TensorRT-LLM ends the process instead."""
        if self._waker is not None:
            self._waker.close()
        if _rank.hub is not None:
            _rank.hub.close()
            _rank.hub = None

    def _wait(self, hub: Hub, name: str) -> None:
        # The engine cannot be told to ask again later; both deadlines together are short.
        until = time.monotonic() + 2 * hub.admissions.deadline_s + _POLL_S
        while hub.requests.state(name) is State.PENDING and time.monotonic() < until:
            hub.requests.poll(_POLL_S)

    def _saves(self, hub: Hub, name: str, plan: RequestPlan) -> Sequence[tuple[int, BlockRef, int]]:
        whole = plan.saves(hub.tokens_per_block)
        admission = hub.requests.get(name)
        if not whole or admission is None or not admission.may_store:
            return ()
        hashes = block_hashes(plan.tokens, hub.tokens_per_block)
        return [
            (admission.handle, BlockRef(hashes[index], 0, index), page)
            for index, page in whole
            if not admission.tier(0, index)
        ]

    def _answer_scrubs(self, hub: Hub) -> None:
        finished = _rank.finished
        finished.connection(hub.admissions.connections)
        running = [(plan.owner, len(plan.blocks)) for plan in self._plans.values()]
        for scrub in hub.admissions.take_scrubs():
            finished.ask(scrub.call, scrub.owners, scrub.everything)
        for report in finished.progress(running):
            hub.admissions.report_scrub(report)

    def _watch_mail(self, hub: Hub) -> None:
        """An engine without requests takes no steps: a thread answers the daemon then."""
        if self._waker is not None:
            return

        def answer() -> None:
            with hub.lock:
                hub.requests.poll()
                self._answer_scrubs(hub)

        self._waker = MailWaker(hub.admissions.has_mail, answer)


class _Gather:
    def __init__(self, hub: Hub, pages: Sequence[int]) -> None:
        self._hub = hub
        self._pages = pages

    def __call__(self, position: int, slot: int) -> None:
        self._hub.gather(slot, self._pages[position])


def _salt_of(request: LlmRequest) -> str | int | None:
    """The salt, or the number that 1.2 keeps of it."""
    salt = getattr(request, "cache_salt", None)
    if isinstance(salt, str) and salt:
        return salt
    number = getattr(request, "cache_salt_id", None)
    return number if isinstance(number, int) else None
