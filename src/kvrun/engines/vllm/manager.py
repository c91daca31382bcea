"""vLLM's offloading manager, answered from admissions: no index of its own, no message a block."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvrun.engines.admission import Admissions, State
from kvrun.engines.transfer import BlockRef
from kvrun.engines.vllm.compat import (
    CacheHitSource,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)

_TIER_DISK = 2


class GovernedSpec(LoadStoreSpec):
    """The blocks of one transfer and the handle that may open or seal them."""

    def __init__(self, handle: int, blocks: Sequence[BlockRef]) -> None:
        self.handle = handle
        self.blocks = tuple(blocks)

    def __repr__(self) -> str:
        # A crashing engine prints its metadata into the log; handle and hashes stay out of it.
        return f"GovernedSpec({len(self.blocks)} blocks)"


class GovernedManager(OffloadingManager):
    """Scheduler side of the governed cache.

    ``tokens_per_block`` by group position; ``positions`` maps vLLM's group ids to positions.
    """

    def __init__(
        self, admissions: Admissions, tokens_per_block: Sequence[int], group_ids: Sequence[int]
    ) -> None:
        self.admissions = admissions
        self._tokens_per_block = tuple(tokens_per_block)
        self._positions = {group_id: position for position, group_id in enumerate(group_ids)}

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the daemon holds a block; RETRY while the admission is not decided."""
        admission = self.admissions.get(req_context.req_id)
        if admission is None or admission.state is State.DENIED:
            return LookupResult.MISS
        if admission.state is State.PENDING:
            return LookupResult.RETRY
        ref = self._ref(key, req_context)
        if ref is None or not admission.tier(ref.group, ref.index):
            return LookupResult.MISS
        return LookupResult.HIT

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Where a hit comes from, for vLLM's own counters."""
        admission = self.admissions.get(req_context.req_id)
        ref = self._ref(key, req_context)
        if admission is not None and ref is not None:
            tier = admission.tier(ref.group, ref.index)
            return CacheHitSource.DISK if tier == _TIER_DISK else CacheHitSource.HOST
        return CacheHitSource.EXTERNAL_UNSPECIFIED

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """The blocks to open, under the request's handle."""
        admission = self.admissions.get(req_context.req_id)
        handle = admission.handle if admission is not None else 0
        return GovernedSpec(handle, self._refs(keys, req_context))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """The blocks to seal: those the daemon does not hold, each once a request."""
        admission = self.admissions.get(req_context.req_id)
        if admission is None or not admission.may_store:
            return PrepareStoreOutput([], GovernedSpec(0, ()), [])
        wanted: list[OffloadKey] = []
        refs: list[BlockRef] = []
        for key in keys:
            ref = self._ref(key, req_context)
            if ref is None or admission.tier(ref.group, ref.index):
                continue
            if (ref.group, ref.index) in admission.stored:
                continue
            admission.stored.add((ref.group, ref.index))
            wanted.append(key)
            refs.append(ref)
        return PrepareStoreOutput(wanted, GovernedSpec(admission.handle, refs), [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Nothing of its own: the connector asked for the admission."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Give the request's handle back."""
        self.admissions.finish(req_context.req_id)

    def reset_cache(self) -> None:
        """vLLM forgets its pages; the daemon's sealed blocks stay valid and are found again."""

    def shutdown(self) -> None:
        """Close the connection to the daemon."""
        self.admissions.close()

    def _refs(self, keys: Collection[OffloadKey], context: ReqContext) -> list[BlockRef]:
        refs = (self._ref(key, context) for key in keys)
        return [ref for ref in refs if ref is not None]

    def _ref(self, key: OffloadKey, context: ReqContext) -> BlockRef | None:
        position = self._positions.get(get_offload_group_idx(key))
        end = context.get_offload_key_position(key)
        if position is None or end is None:
            return None
        tokens = self._tokens_per_block[position]
        if end % tokens:
            # Partial tails (recurrent models) have no whole block; they are not offloaded.
            return None
        return BlockRef(bytes(get_offload_block_hash(key)), position, end // tokens - 1)
