"""A reference engine: Hugging Face transformers with its DynamicCache, governed block by block.

Small enough to see through: a block is the KV of 16 tokens over all layers, exported from the
cache, sealed by the daemon, opened and imported into an empty cache.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from kvrun.engines.admission import Admission, Admissions, State
from kvrun.engines.blocks import BlockIO
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.tensorrt_llm.tokens import block_hashes
from kvrun.engines.transfer import BlockRef
from kvrun.instance.connection import Reconnector, make_hello
from kvrun.instance.protocol import GroupLayout, Hello, Role
from support.client import claimed
from support.daemon import Daemon

BLOCK, LAYERS, HEADS, SIZE = 16, 4, 2, 32


class ReferenceEngine:
    """One model, one daemon. Deterministic: weights come from a seed."""

    def __init__(self, daemon: Daemon) -> None:
        torch.manual_seed(0)
        # Wide initial weights: with narrow ones the logits hardly depend on what was cached.
        self.config = LlamaConfig(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=HEADS,
            head_dim=SIZE,
            max_position_embeddings=4096,
            initializer_range=0.3,
        )
        self.model = LlamaForCausalLM(self.config).to(torch.bfloat16).eval()
        self._daemon = daemon
        search = Reconnector(daemon.socket, self._hello(Role.SCHEDULER))
        self.admissions = Admissions(search.first(20), search, time.monotonic)
        finding = Reconnector(daemon.socket, self._hello(Role.WORKER))
        self.blocks = BlockIO(WorkerChannel(finding.first(20), finding), (self._block_bytes,))
        self._asked = 0

    @property
    def _block_bytes(self) -> int:
        return LAYERS * 2 * HEADS * BLOCK * SIZE * 2

    def prefill(self, tokens: list[int]) -> DynamicCache:
        """A fresh cache of these tokens."""
        cache = DynamicCache(config=self.config)
        self.continuation(cache, tokens)
        return cache

    @torch.inference_mode()
    def continuation(self, cache: DynamicCache, tokens: list[int]) -> torch.Tensor:
        """The logits of these tokens behind what the cache holds, which they are added to."""
        ids = torch.tensor([tokens])
        logits: torch.Tensor = self.model(ids, past_key_values=cache, use_cache=True).logits
        return logits

    def seal(self, admission: Admission, tokens: list[int], cache: DynamicCache) -> int:
        """Seal every whole block that the session does not have; how many were handed over."""
        refs = [ref for ref in _refs(tokens) if not admission.tier(0, ref.index)]

        def fill(position: int, slot: int) -> None:
            block = exported(cache, refs[position].index).contiguous().view(torch.uint8).flatten()
            view = self.blocks.view(slot, 0)
            torch.frombuffer(view, dtype=torch.uint8).copy_(block)

        return sum(self.blocks.seal(admission.handle, refs, fill))

    def restore(self, admission: Admission, tokens: list[int]) -> tuple[DynamicCache, int]:
        """A cache of what opens of these tokens from their beginning, and how many those are."""
        parts: dict[int, torch.Tensor] = {}

        def copy(position: int, slot: int) -> None:
            raw = torch.frombuffer(self.blocks.view(slot, 0), dtype=torch.uint8).clone()
            parts[position] = raw.view(torch.bfloat16).view(LAYERS, 2, HEADS, BLOCK, SIZE)

        refs = [ref for ref in _refs(tokens) if admission.tier(0, ref.index)]
        count = sum(self.blocks.read(admission.handle, refs, copy))
        cache = DynamicCache(config=self.config)
        if count:
            imported(cache, torch.cat([parts[index] for index in range(count)], dim=3))
        return cache, count * BLOCK

    def admit(
        self, tenant: str, tokens: list[int], *, session: str = "default"
    ) -> tuple[str, Admission]:
        """The daemon's answer to a request of this session; the request's id."""
        request_id, ask = claimed(self._daemon, tenant, tokens, session=session)
        self._asked += 1
        name = f"{self._asked}"
        admission = self.admissions.begin(
            name, ask.claim, ask.salt, block_hashes(tokens, BLOCK), len(tokens)
        )
        while admission.state is State.PENDING:
            self.admissions.poll(0.05)
        return request_id, admission

    def close(self) -> None:
        """Leave the daemon."""
        self.admissions.close()
        self.blocks.shut()

    def _hello(self, role: Role) -> Hello:
        worker = role is Role.WORKER
        return make_hello(
            role,
            self._daemon.engine_token,
            "transformers",
            fingerprint=b"r" * 32,
            groups=(GroupLayout(BLOCK, 1, f"{LAYERS}:all"),),
            block_bytes=(self._block_bytes,) if worker else (),
            context_window=1024,
        )


def exported(cache: DynamicCache, index: int) -> torch.Tensor:
    """Block ``index``: [layers, key or value, heads, tokens, head size]."""
    part = slice(index * BLOCK, (index + 1) * BLOCK)
    layers: Any = cache.layers
    return torch.stack(
        [torch.stack([layer.keys[0, :, part], layer.values[0, :, part]]) for layer in layers]
    )


def imported(cache: DynamicCache, kv: torch.Tensor) -> None:
    """Put blocks into an empty cache."""
    for layer in range(LAYERS):
        cache.update(kv[layer, 0][None].contiguous(), kv[layer, 1][None].contiguous(), layer)


def _refs(tokens: list[int]) -> list[BlockRef]:
    return [BlockRef(name, 0, index) for index, name in enumerate(block_hashes(tokens, BLOCK))]
