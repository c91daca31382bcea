"""vLLM's offloading worker over ``transfer.Transfers``."""

from __future__ import annotations

from collections.abc import Sequence

from kvrun.engines.transfer import BlockRef, Transfers
from kvrun.engines.vllm.compat import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from kvrun.engines.vllm.manager import GovernedSpec


class GovernedWorker(OffloadingWorker):
    """Worker side of the governed cache.

    ``failed_loads`` collects jobs whose pages must not be used. vLLM 0.32 asserts that every
    result is a success, so a failed load is reported as one and told apart by the connector.
    """

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self.failed_loads: set[int] = set()
        self.idle_wait_s = 0.0

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Seal pages; always True: what cannot be stored is dropped."""
        assert isinstance(dst_spec, GovernedSpec)
        self.transfers.store(job_id, dst_spec.handle, _pairs(dst_spec, src_spec))
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Open blocks into pages; always True: what cannot be loaded is computed."""
        assert isinstance(src_spec, GovernedSpec)
        self.transfers.load(job_id, src_spec.handle, _pairs(src_spec, dst_spec))
        return True

    def get_finished(self) -> list[TransferResult]:
        """The transfers that ended since the last call."""
        results = []
        for done in self.transfers.poll(self.idle_wait_s):
            if done.failed:
                self.failed_loads.add(done.job)
            results.append(TransferResult(done.job, True, done.size_bytes, done.seconds))
        return results

    def wait(self, job_ids: set[int]) -> None:
        """The pages of these stores are about to change: copy them out now or drop them."""
        self.transfers.settle_stores(job_ids)

    def shutdown(self) -> None:
        """Forget everything and close the channel."""
        self.transfers.close()


def _pairs(spec: GovernedSpec, pages: GPULoadStoreSpec) -> Sequence[tuple[BlockRef, int]]:
    numbers = pages.block_ids.tolist()
    if len(numbers) != len(spec.blocks):
        raise AssertionError(f"{len(spec.blocks)} blocks for {len(numbers)} pages")
    return list(zip(spec.blocks, numbers, strict=True))
