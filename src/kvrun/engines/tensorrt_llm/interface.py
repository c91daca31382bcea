"""TensorRT-LLM's connector base classes, or stand-ins of the same shape where it is not installed.

Interface-checked, not yet run on TensorRT-LLM: written against the interface of 1.2 and the one
after it, whose module moved.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

MODULES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)
"""Where the base classes are: newer releases first."""


class Stream(Protocol):
    """A CUDA stream, as far as the connector uses it."""

    def synchronize(self) -> None:
        """Wait until everything submitted is done."""


class LlmRequest(Protocol):
    """TensorRT-LLM's request. Newer ones have ``cache_salt`` (text) too; 1.2 its number only."""

    request_id: int
    cache_salt_id: int | None

    def get_tokens(self, beam: int) -> Sequence[int]:
        """Prompt and answer so far."""


class RequestData(Protocol):
    """A scheduled request in ``SchedulerOutput``."""

    request_id: int
    new_tokens: Sequence[int]
    new_block_ids: Sequence[int]
    computed_position: int
    num_scheduled_tokens: int


class SchedulerOutput(Protocol):
    """What one step computes."""

    new_requests: Sequence[RequestData]
    cached_requests: Sequence[RequestData]


class SchedulerInterface(ABC):
    """The scheduler half as TensorRT-LLM calls it, on rank 0."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> object:
        """What the workers do in this step."""

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Tokens that can be loaded, and whether that happens beside the steps."""

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        """Whether the blocks stay allocated until a worker reports the request as saved."""

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        """Which blocks a request got."""


class WorkerInterface(ABC):
    """The worker half as TensorRT-LLM calls it, on every rank."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None
        super().__init__()

    def bind_connector_meta(self, metadata: object) -> None:
        """What this step does."""
        self._metadata = metadata

    def get_connector_meta(self) -> object:
        """What was bound."""
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Callable[[], None] | None:
        """Called at the end of a forward pass; nothing by default."""
        return None

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """The tensor whose row is a block."""

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None:
        """Before the forward pass."""

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Before a layer."""

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """After a layer."""

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None:
        """After the forward pass."""

    @abstractmethod
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Requests whose saving and whose loading ended."""


def connector_bases() -> tuple[type[Any], type[Any]]:
    """Scheduler and worker base class: TensorRT-LLM's where it is installed, else the stand-ins."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker
    return SchedulerInterface, WorkerInterface
