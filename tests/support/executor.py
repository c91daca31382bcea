"""A stand-in for TensorRT-LLM's executor loop, with CPU tensors and a model one can check.

It calls the connector in the documented order. Its "model" writes into each block a value that
depends on every token up to there, and answers from what lies in the blocks: with any other KV in
them it gives another answer.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

LAYERS, WIDTH, BLOCK = 3, 8, 16


class Stream:
    """A CUDA stream that has always caught up."""

    def synchronize(self) -> None:
        pass


def llm_args(model: str = "none", **changes: Any) -> SimpleNamespace:
    """Arguments of an engine that kvrun serves; ``cache_...`` changes its kv_cache_config."""
    cache = {
        "tokens_per_block": BLOCK,
        "enable_block_reuse": False,
        "host_cache_size": None,
        "event_buffer_max_size": 0,
        "max_attention_window": None,
        "dtype": "auto",
    }
    args = {
        "model": model,
        "dtype": "float32",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "max_beam_width": 1,
        "max_seq_len": 2048,
        "speculative_config": None,
        "disable_overlap_scheduler": True,
    }
    for name, value in changes.items():
        (cache if name.startswith("cache_") else args)[name.removeprefix("cache_")] = value
    return SimpleNamespace(**args, kv_cache_config=SimpleNamespace(**cache))


@dataclass
class LlmRequest:
    """1.2 knows the salt's number only; newer releases its text too."""

    request_id: int
    tokens: list[int]
    cache_salt_id: int | None = None
    cache_salt: str | None = None

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return self.tokens


@dataclass
class Data:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class Output:
    new_requests: list[Data] = field(default_factory=list)
    cached_requests: list[Data] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """The tokens, and how many of the prompt the connector promised."""

    tokens: list[int]
    matched: int


@dataclass
class _Running:
    request: LlmRequest
    blocks: list[int]
    computed: int
    told_tokens: int = 0
    told_blocks: int = 0


class Executor:
    """One engine. ``newer``: the first step's computed_position holds what was loaded too."""

    def __init__(
        self,
        scheduler: Any,
        worker: Any,
        *,
        blocks: int = 64,
        chunk: int = 4096,
        newer: bool = False,
    ) -> None:
        self.scheduler, self.worker = scheduler, worker
        self.tensor = torch.zeros(blocks, LAYERS, 2, BLOCK * WIDTH)
        self.free = list(range(blocks - 1, -1, -1))
        self.chunk, self.newer = chunk, newer
        self.calls: list[str] = []
        self._numbers = itertools.count(1)
        self._saving: dict[int, list[int]] = {}
        self.bad_blocks = False
        worker.register_kv_caches(self.tensor)

    def generate(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        number: int | None = None,
        new: int = 3,
    ) -> Answer:
        """Run one request to its end."""
        with self.running(tokens, salt=salt, number=number) as running:
            matched = running.computed
            self._prefill(running)
            answer = [self._token(running)]
            for _ in range(new - 1):
                running.request.tokens.append(answer[-1])
                self._step(running, 1, first=False)
                answer.append(self._token(running))
        return Answer(answer, matched)

    @contextmanager
    def running(
        self, tokens: Sequence[int], *, salt: str | None = None, number: int | None = None
    ) -> Iterator[_Running]:
        """A request that has its blocks, and ends with the block of code."""
        request = LlmRequest(next(self._numbers), list(tokens), number, salt)
        matched, beside = self._call(self.scheduler, "get_num_new_matched_tokens", request, 0)
        assert not beside
        assert matched < len(tokens), "one token is always computed"
        need = -(-(len(tokens) + 8) // BLOCK)
        blocks = [self.free.pop() for _ in range(need)]
        if self.bad_blocks:
            blocks[1] = -1
        self._call(self.scheduler, "update_state_after_alloc", request, list(blocks))
        running = _Running(request, blocks, matched)
        try:
            yield running
        finally:
            self._end(running)

    def _prefill(self, running: _Running) -> None:
        first, matched = True, running.computed
        while running.computed < len(running.request.tokens):
            count = min(self.chunk, len(running.request.tokens) - running.computed)
            self._step(running, count, first=first, matched=matched)
            first = False

    def _step(self, running: _Running, count: int, *, first: bool, matched: int = 0) -> None:
        tokens = running.request.tokens
        while len(running.blocks) * BLOCK < running.computed + count:
            running.blocks.append(self.free.pop())
        position = running.computed - (matched if first and not self.newer else 0)
        data = Data(
            running.request.request_id,
            tokens[running.told_tokens :],
            running.blocks[running.told_blocks :],
            position,
            count,
        )
        running.told_tokens, running.told_blocks = len(tokens), len(running.blocks)
        output = Output([data], []) if first else Output([], [data])
        self._forward(output, running, count)

    def _forward(self, output: Output, running: _Running | None, count: int) -> None:
        stream = Stream()
        meta = self._call(self.scheduler, "build_connector_meta", output)
        self.worker.bind_connector_meta(meta)
        self._call(self.worker, "start_load_kv", stream)
        for layer in range(LAYERS):
            self._call(self.worker, "wait_for_layer_load", layer, stream)
            if running is not None:
                self._compute(running, layer, count)
            self._call(self.worker, "save_kv_layer", layer, stream)
        if running is not None:
            running.computed += count
        self._call(self.worker, "wait_for_save", stream)
        saved, _ = self._call(self.worker, "get_finished", list(self._saving), [])
        for request_id in saved:
            self.free += self._saving.pop(request_id)

    def _end(self, running: _Running) -> None:
        blocks = running.blocks
        if self._call(self.scheduler, "request_finished", running.request, list(blocks)):
            self._saving[running.request.request_id] = [b for b in blocks if b >= 0]
        else:
            self.free += [b for b in blocks if b >= 0]
        self._forward(Output(), None, 0)

    def _compute(self, running: _Running, layer: int, count: int) -> None:
        for at in range(running.computed, running.computed + count):
            block, place = running.blocks[at // BLOCK], at % BLOCK * WIDTH
            for part in range(2):
                value = _kv(running.request.tokens[: at + 1], layer, part)
                self.tensor[block, layer, part, place : place + WIDTH] = value

    def _token(self, running: _Running) -> int:
        digest = hashlib.sha256()
        for at in range(running.computed):
            place = at % BLOCK * WIDTH
            row = self.tensor[running.blocks[at // BLOCK], :, :, place : place + WIDTH]
            digest.update(row.contiguous().numpy().tobytes())
        return int.from_bytes(digest.digest()[:3], "big")

    def _call(self, target: Any, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        return getattr(target, name)(*arguments)


def _kv(tokens: Sequence[int], layer: int, part: int) -> torch.Tensor:
    text = f"{layer}:{part}:{','.join(map(str, tokens))}".encode()
    raw = hashlib.sha256(text).digest()[: WIDTH * 2]
    return torch.frombuffer(bytearray(raw), dtype=torch.int16).to(torch.float32)
