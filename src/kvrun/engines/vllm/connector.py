"""``KvrunConnector``: vLLM's offloading connector, governed.

vLLM's own connector keeps its scheduling, hybrid groups, preemption and fences. This subclass
adds who may use the cache: a request without an admission is neither stored, loaded nor given
vLLM's own prefix cache, and a block that did not open makes its request recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvrun.claims.claim import CLAIM_PARAMETER, TRACE_PARAMETER
from kvrun.engines.admission import Admission, Admissions, State
from kvrun.engines.scrub import ANYONE, PageScrubber
from kvrun.engines.vllm.compat import (
    ForwardContext,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheManager,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorRole,
    KVConnectorTransferResults,
    OffloadingConnector,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    Request,
    SchedulerOutput,
    TransferJob,
    VllmConfig,
    engine_wake,
    init_logger,
)
from kvrun.engines.vllm.enginepages import EnginePages
from kvrun.engines.vllm.governance import check_engine, engine_fingerprint
from kvrun.engines.vllm.retention import keep_answers
from kvrun.engines.vllm.spec import KvrunOffloadingSpec
from kvrun.engines.vllm.worker import GovernedWorker
from kvrun.engines.wake import MailWaker
from kvrun.instance.protocol import Scrubbed, page_owner
from kvrun.process import leave_no_core

_IDLE_WAIT_S = 0.001
# An answer takes one to two milliseconds; a new request is looked at only after this.
_ADMISSION_WAIT_S = 0.005
_log = init_logger("vllm.kvrun")


@dataclass(repr=False)
class KvrunConnectorMetadata(OffloadingConnectorMetadata):
    """One step's transfers; ``idle`` says that the engine computes nothing in this step.

    ``scrub`` is the number of a scrub order and the pages that every worker zeroes.
    """

    load_jobs: dict[int, TransferJob] = field(default_factory=dict)
    store_jobs: dict[int, TransferJob] = field(default_factory=dict)
    jobs_to_flush: set[int] | None = None
    idle: bool = False
    scrub: tuple[int, tuple[int, ...]] | None = None

    def __repr__(self) -> str:
        return f"KvrunConnectorMetadata({len(self.load_jobs)} loads, {len(self.store_jobs)} stores)"


class KvrunConnector(OffloadingConnector):
    """The class that ``--kv-transfer-config`` names."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        check_engine(vllm_config)
        leave_no_core()
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        extra.setdefault("spec_name", KvrunOffloadingSpec.__name__)
        extra.setdefault("spec_module_path", KvrunOffloadingSpec.__module__)
        KvrunOffloadingSpec.fingerprint = engine_fingerprint(vllm_config, kv_cache_config, extra)
        KvrunOffloadingSpec.context_window = vllm_config.model_config.max_model_len
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_scheduler is not None:
            keep_answers(self.connector_scheduler)
        self._requests: dict[str, Request] = {}
        self._ranks = vllm_config.parallel_config.world_size
        self._scrubber: PageScrubber | None = None
        self._waker: MailWaker | None = None
        self._connections = 0
        self._looked = False
        self._denied: set[str] = set()
        wake = engine_wake() if role is KVConnectorRole.SCHEDULER else None
        if wake is not None:
            self._waker = MailWaker(self.admissions.has_mail, wake)

    @property
    def admissions(self) -> Admissions:
        """The scheduler side's admissions."""
        return self.scheduler.manager.admissions

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        pages = EnginePages(kv_cache_manager, self.scheduler)
        self._scrubber = PageScrubber(pages, self._ranks)

    def has_pending_push_work(self) -> bool:
        scrubbing = self._scrubber is not None and self._scrubber.pending
        return scrubbing or self.admissions.has_mail() or super().has_pending_push_work()

    def shutdown(self) -> None:
        if self._waker is not None:
            self._waker.close()
        super().shutdown()

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._own(request.request_id, blocks.get_block_ids())
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def on_new_request(self, request: Request) -> None:
        claim, traceparent = _take_claim(request)
        request_id = request.request_id
        self._requests[request_id] = request
        if not claim or not request.cache_salt:
            self.admissions.deny(request_id, "the request carries no claim")
        else:
            self.admissions.begin(
                request_id,
                claim,
                request.cache_salt,
                [bytes(block_hash) for block_hash in request.block_hashes],
                request.num_prompt_tokens,
                traceparent,
            )
        self._deny_if_denied(request_id)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        admission = self.admissions.get(request.request_id)
        assert admission is not None, "vLLM announces every request before it schedules it"
        if admission.state is State.PENDING and not request.skip_reading_prefix_cache:
            self._wait_for_admissions()
        if admission.state is not State.ADMITTED:
            if not request.skip_reading_prefix_cache:
                # Not decided yet, or denied after vLLM looked at its own cache for this step: ask
                # again in the next one rather than reuse a page without an admission. vLLM would
                # take what it found if it were told only now to skip its cache: see _skip_denied.
                return None, False
            return super().get_num_new_matched_tokens(request, num_computed_tokens)
        admission.engine_tokens = num_computed_tokens
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, pages in zip(cached.req_ids, cached.new_block_ids, strict=True):
            self._own(request_id, pages or ())
        for scheduled in scheduler_output.scheduled_new_reqs:
            self._own(scheduled.req_id, scheduled.block_ids)
            admission = self.admissions.get(scheduled.req_id)
            if admission is not None:
                local = admission.engine_tokens
                loaded = max(0, scheduled.num_computed_tokens - local)
                self.admissions.start(scheduled.req_id, local, loaded)
        meta = super().build_connector_meta(scheduler_output)
        assert isinstance(meta, OffloadingConnectorMetadata)
        for request_id in scheduler_output.preempted_req_ids or ():
            self._ask_again(request_id, self.admissions.ask_again)
        idle = scheduler_output.total_num_scheduled_tokens == 0
        self._denied.update(self.admissions.poll(_IDLE_WAIT_S if idle else 0.0))
        self._skip_denied()
        self._looked = False
        for request_id in scheduler_output.finished_req_ids or ():
            self._requests.pop(request_id, None)
        scrub = self._next_scrub()
        return KvrunConnectorMetadata(
            meta.load_jobs, meta.store_jobs, meta.jobs_to_flush, idle, scrub
        )

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        metadata = self._connector_metadata
        if isinstance(metadata, KvrunConnectorMetadata) and metadata.scrub is not None:
            self._worker().transfers.scrub(*metadata.scrub)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, OffloadingWorkerMetadata) and self._scrubber is not None:
            for order in [job for job in meta.completed_jobs if job < 0]:
                self._scrubber.zeroed(-order, meta.completed_jobs.pop(order))
        super().update_connector_output(connector_output)
        for request_id in connector_output.failed_recving or ():
            self._ask_again(request_id, self.admissions.load_failed)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        side = self.connector_worker
        assert side is not None
        worker = self._worker()
        metadata = self._connector_metadata
        idle = isinstance(metadata, KvrunConnectorMetadata) and metadata.idle
        # While only loads are in flight the engine spins; waiting gives the CPU to the daemon.
        worker.idle_wait_s = _IDLE_WAIT_S if idle else 0.0
        jobs = dict(side._load_jobs)
        results = super().get_transfer_results(finished_req_ids)
        failed, worker.failed_loads = worker.failed_loads, set()
        results.failed_recving |= {jobs[job] for job in failed if job in jobs}
        for order in worker.transfers.scrubbed():
            # Counted over the ranks like a transfer; vLLM numbers its own from 0 up.
            side._connector_worker_meta.mark_completed(-order)
        return results

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        admission = self.admissions.get(request.request_id)
        admitted = admission is not None and admission.state is State.ADMITTED
        result = super().request_finished_all_groups(request, block_ids)
        keep = admitted and not self.admissions.stateless
        if not keep and self._kv_cache_manager is not None:
            # Nothing of a stateless request, or of one without an admission, may serve another.
            pages = {block for group in block_ids for block in group if block}
            self._kv_cache_manager.evict_blocks(pages)
        return result

    def _skip_denied(self) -> None:
        """From the next step on vLLM skips its own cache for what was denied in this one."""
        denied, self._denied = self._denied, set()
        for request_id in denied:
            self._deny_if_denied(request_id)

    def _wait_for_admissions(self) -> None:
        """Waits once a step for the daemon, where nothing else is to be computed meanwhile: the
        empty step that comes otherwise goes through every worker and takes longer."""
        if self._looked:
            return
        self._looked = True
        if all(map(self._waits, self._requests.values())):
            self._denied.update(self.admissions.poll(_ADMISSION_WAIT_S))

    def _waits(self, request: Request) -> bool:
        # One that skips vLLM's own cache is computed whatever the daemon says.
        admission = self.admissions.get(request.request_id)
        undecided = admission is None or admission.state is State.PENDING
        return undecided and not request.skip_reading_prefix_cache

    def _worker(self) -> GovernedWorker:
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert isinstance(worker, GovernedWorker)
        return worker

    def _own(self, request_id: str, pages: Sequence[Sequence[int]]) -> None:
        request = self._requests.get(request_id)
        if self._scrubber is not None and request is not None:
            owner = page_owner(request.cache_salt or "")
            admission = self.admissions.get(request_id)
            denied = admission is None or admission.state is State.DENIED
            if denied and not self._scrubber.is_erased(owner):
                # Its salt is its own: no erasure could name it, so every erasure means it.
                owner = ANYONE
            for group in pages:
                self._scrubber.own(owner, group)

    def _next_scrub(self) -> tuple[int, tuple[int, ...]] | None:
        scrubber = self._scrubber
        if scrubber is None:
            return None
        if self._connections != self.admissions.connections:
            self._connections = self.admissions.connections
            scrubber.forget_calls()
        for asked in self.admissions.take_scrubs():
            scrubber.ask(asked.call, asked.owners, asked.everything)
        order = scrubber.next_order()
        for told in scrubber.progress():
            self.admissions.report_scrub(
                Scrubbed(told.call, told.evicted, told.scrubbed, told.held)
            )
        return order

    def _ask_again(self, request_id: str, ask: Callable[[str, Sequence[bytes]], None]) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            ask(request_id, [bytes(block_hash) for block_hash in request.block_hashes])
            self._deny_if_denied(request_id)

    def _deny_if_denied(self, request_id: str) -> None:
        admission = self.admissions.get(request_id)
        request = self._requests.get(request_id)
        if admission is not None and request is not None:
            self._skip_if_denied(request, admission)

    def _skip_if_denied(self, request: Request, admission: Admission) -> None:
        if admission.state is State.DENIED and not request.skip_reading_prefix_cache:
            request.skip_reading_prefix_cache = True
            _log.info(
                "request %s goes on without the cache: %s", request.request_id, admission.reason
            )


def _take_claim(request: Request) -> tuple[str, str]:
    """The claim in a request's parameters, removed from everything vLLM may print, and the
    request's place in a trace."""
    parameters = request.kv_transfer_params or {}
    claim, traceparent = parameters.get(CLAIM_PARAMETER), parameters.get(TRACE_PARAMETER)
    request.kv_transfer_params = None
    sampling = request.sampling_params
    if sampling is not None and sampling.extra_args:
        sampling.extra_args.pop("kv_transfer_params", None)
    return _text(claim), _text(traceparent)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
