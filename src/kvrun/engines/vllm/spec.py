"""vLLM's offloading spec: makes the manager in the scheduler and the transfers in each worker."""

from __future__ import annotations

import hashlib
import time

from kvrun.engines.admission import Admissions
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.pages import page_copier
from kvrun.engines.settings import START_TIMEOUT_S, AdapterSettings
from kvrun.engines.transfer import Transfers
from kvrun.engines.vllm.compat import (
    CanonicalKVCaches,
    OffloadingConfig,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    require_supported_version,
)
from kvrun.engines.vllm.manager import GovernedManager
from kvrun.engines.vllm.settings import adapter_settings
from kvrun.engines.vllm.worker import GovernedWorker
from kvrun.instance.connection import Reconnector, make_hello
from kvrun.instance.protocol import GroupLayout, Hello, Role


class KvrunOffloadingSpec(OffloadingSpec):
    """Connects one engine process to the instance daemon.

    ``fingerprint`` and ``context_window`` are set by the connector before either side is made.
    """

    fingerprint: bytes = b""
    context_window: int = 0

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        require_supported_version()
        self.offload_prompt_only = False
        self.settings: AdapterSettings = adapter_settings(config.extra_config)
        self.admissions: Admissions | None = None
        self.transfers: Transfers | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's half. Raises InstanceUnavailableError without a daemon."""
        hello = self._hello(Role.SCHEDULER)
        reconnector = Reconnector(self.settings.socket, hello)
        connection = reconnector.first(START_TIMEOUT_S)
        self.admissions = Admissions(connection, reconnector, time.monotonic)
        groups = self.config.groups
        return GovernedManager(
            self.admissions,
            [group.tokens_per_block for group in groups],
            [group.group_id for group in groups],
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's half. Raises InstanceUnavailableError without a daemon."""
        tensors = [canonical.tensor for canonical in kv_caches.tensors]
        refs = [
            [(ref.tensor_idx, ref.page_size_bytes) for ref in group]
            for group in kv_caches.group_data_refs
        ]
        sizes = tuple(sum(size for _, size in group) for group in refs)
        hello = self._hello(Role.WORKER, block_bytes=sizes)
        reconnector = Reconnector(self.settings.socket, hello)
        channel = WorkerChannel(reconnector.first(START_TIMEOUT_S), reconnector)
        self.transfers = Transfers(
            channel, lambda region: page_copier(tensors, refs, region.view), time.monotonic
        )
        return GovernedWorker(self.transfers)

    def _hello(self, role: Role, block_bytes: tuple[int, ...] = ()) -> Hello:
        tokens_per_hash = self.config.cache.tokens_per_hash
        return make_hello(
            role,
            self.settings.token,
            f"vllm {require_supported_version()}",
            fingerprint=self.fingerprint,
            groups=tuple(
                GroupLayout(
                    tokens_per_block=group.tokens_per_block,
                    hashes_per_chunk=group.tokens_per_block // tokens_per_hash,
                    layers=_layers(group.layer_names),
                )
                for group in self.config.groups
            ),
            block_bytes=block_bytes,
            rank=self.config.parallel.rank,
            world_size=self.config.parallel.world_size,
            context_window=self.context_window,
            scrubs=role is Role.SCHEDULER,
        )


def _layers(names: tuple[str, ...]) -> str:
    """A short text that names exactly these layers in this order."""
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return f"{len(names)}:{digest[:32]}"
