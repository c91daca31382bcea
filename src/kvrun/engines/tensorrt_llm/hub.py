"""The one connection to the daemon that both halves of the connector share.

TensorRT-LLM makes the scheduler and the worker of a rank in one process; it has no way to take
back tokens that a connector promised. So a block is opened before it is promised, and both halves
must see the same staging memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kvrun.engines.admission import Admissions
from kvrun.engines.blocks import BlockIO
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.claims import AnnouncedClaims
from kvrun.engines.copying import PageCopier, PageCopy
from kvrun.engines.pages import page_copier
from kvrun.engines.settings import START_TIMEOUT_S, find_daemon
from kvrun.engines.tensorrt_llm.governance import (
    engine_fingerprint,
    engine_version,
    tokens_per_block,
)
from kvrun.engines.tensorrt_llm.tokens import salt_number
from kvrun.engines.waiting import AnnouncedAdmissions
from kvrun.instance.connection import Reconnector, make_hello
from kvrun.instance.protocol import GroupLayout, Hello, Role
from kvrun.process import leave_no_core

VARIABLE_PREFIX = "TLLM_"
"""Only variables with this beginning reach the processes that TensorRT-LLM starts."""
_DEFAULT_WINDOW = 32_000


class Hub:
    """Admissions, staging and the engine's blocks, made once the engine has its KV tensor."""

    def __init__(
        self, args: Any, tensor: torch.Tensor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises KvrunError: no daemon, or a tensor whose rows are not whole blocks."""
        leave_no_core()
        self.tokens_per_block = tokens_per_block(args)
        self.lock = threading.RLock()
        self._rows = tensor.view(tensor.shape[0], -1).view(torch.uint8)
        row_bytes = self._rows.shape[1]
        settings = find_daemon(None, None, os.environ, prefix=VARIABLE_PREFIX)
        given = os.environ.get(VARIABLE_PREFIX + "KVRUN_MODEL_FINGERPRINT")
        fingerprint = engine_fingerprint(args, tensor, given)
        window = int(getattr(args, "max_seq_len", None) or _DEFAULT_WINDOW)

        layers = "tensorrt-llm:" + "x".join(map(str, tensor.shape[1:]))

        def hello(role: Role) -> Hello:
            scheduler = role is Role.SCHEDULER
            return make_hello(
                role,
                settings.token,
                f"tensorrt-llm {engine_version()}",
                fingerprint=fingerprint,
                groups=(GroupLayout(self.tokens_per_block, 1, layers),),
                block_bytes=() if scheduler else (row_bytes,),
                context_window=window,
                scrubs=scheduler,
                announced=scheduler,
            )

        search = Reconnector(settings.socket, hello(Role.SCHEDULER))
        announced = AnnouncedClaims(salt_number)
        admissions = Admissions(search.first(START_TIMEOUT_S), search, clock, announced)
        self.requests = AnnouncedAdmissions(admissions, announced, clock)
        finding = Reconnector(settings.socket, hello(Role.WORKER))
        channel = WorkerChannel(finding.first(START_TIMEOUT_S), finding)
        self.blocks = BlockIO(channel, (row_bytes,), clock)
        self._copier: PageCopier | None = None
        self._copier_of = -1

    @property
    def admissions(self) -> Admissions:
        """The scheduler's connection."""
        return self.requests.admissions

    def scatter(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (slot, engine block) pairs out of staging; returns when they are there."""
        self._copy(pairs, lambda copier, batch: copier.submit_scatter(batch))

    def gather(self, slot: int, block: int) -> None:
        """Copy one block of the engine into its slot."""
        self._copy([(slot, block)], lambda copier, batch: copier.submit_gather(batch))

    def zero(self, blocks: list[int]) -> None:
        """Zero blocks of the engine; returns when they are."""
        copier = self._current_copier()
        copier.wait(copier.submit_zero(blocks))

    def close(self) -> None:
        """End both connections."""
        self.admissions.close()
        self.blocks.shut()

    def _copy(
        self,
        pairs: Iterable[tuple[int, int]],
        submit: Callable[[PageCopier, list[PageCopy]], Any],
    ) -> None:
        copier = self._current_copier()
        size = self.blocks.slot_bytes
        batch = [PageCopy(0, block, slot * size) for slot, block in pairs]
        if batch:
            copier.wait(submit(copier, batch))

    def _current_copier(self) -> PageCopier:
        if self._copier is None or self._copier_of != self.blocks.connection:
            if self._copier is not None:
                self._copier.close()
            refs = [[(0, self._rows.shape[1])]]
            self._copier = page_copier([self._rows], refs, self.blocks.staging)
            self._copier_of = self.blocks.connection
        return self._copier
