"""Blocks of a real model through the real daemon: what comes back is exactly what was sealed.

Logits are compared, not tokens: a tiny random model often says the same with a wrong cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import DynamicCache

from support.client import eventually
from support.daemon import Daemon
from support.reference import BLOCK, ReferenceEngine, exported, imported

TOKENS = [(7 * place * place + 13 * place) % 500 for place in range(20 * BLOCK)]
QUESTION = [3, 141, 59, 26, 5]


@pytest.fixture(scope="module")
def engine(daemon: Daemon) -> Iterator[ReferenceEngine]:
    running = ReferenceEngine(daemon)
    yield running
    running.close()


def store(daemon: Daemon, engine: ReferenceEngine, tenant: str, tokens: list[int]) -> torch.Tensor:
    """Seal the tokens' blocks; the logits of the question behind them."""
    request_id, admission = engine.admit(tenant, tokens)
    cache = engine.prefill(tokens)
    handed_over = engine.seal(admission, tokens, cache)
    eventually(
        lambda: daemon.reuse(request_id).sealed_blocks >= handed_over, f"{handed_over} are sealed"
    )
    daemon.admin("flush")
    return engine.continuation(cache, QUESTION)


def test_the_logits_after_a_restore_are_bit_for_bit_the_same(
    daemon: Daemon, engine: ReferenceEngine
) -> None:
    right = store(daemon, engine, "alice", TOKENS)
    _, admission = engine.admit("alice", TOKENS)
    cache, restored = engine.restore(admission, TOKENS)
    assert restored == cache.get_seq_length() == len(TOKENS)
    assert (engine.continuation(cache, QUESTION) - right).abs().max().item() == 0.0


def test_the_comparison_notices_one_block_that_is_wrong(engine: ReferenceEngine) -> None:
    cache = engine.prefill(TOKENS)
    blocks = [exported(cache, index) for index in range(len(TOKENS) // BLOCK)]
    right = engine.continuation(cache, QUESTION)
    blocks[0] = torch.zeros_like(blocks[0])
    damaged = DynamicCache(config=engine.config)
    imported(damaged, torch.cat(blocks, dim=3))
    assert (engine.continuation(damaged, QUESTION) - right).abs().max().item() > 0.01


def test_another_tenant_finds_nothing(daemon: Daemon, engine: ReferenceEngine) -> None:
    store(daemon, engine, "alice", TOKENS)
    for tenant, session in [("bob", "default"), ("alice", "other")]:
        _, admission = engine.admit(tenant, TOKENS, session=session)
        assert engine.restore(admission, TOKENS)[1] == 0
    _, admission = engine.admit("alice", TOKENS)
    assert engine.restore(admission, TOKENS)[1] == len(TOKENS)


def test_a_damaged_block_ends_the_restore_before_it(
    daemon: Daemon, engine: ReferenceEngine
) -> None:
    folder = daemon.data / "storage"
    store(daemon, engine, "carol", TOKENS[: 7 * BLOCK])
    before = set(folder.rglob("*.kvs"))
    store(daemon, engine, "carol", TOKENS[: 8 * BLOCK])
    (eighth,) = set(folder.rglob("*.kvs")) - before
    right = store(daemon, engine, "carol", TOKENS)
    engine.close()
    daemon.stop()
    content = bytearray(eighth.read_bytes())
    content[len(content) // 2] ^= 1
    eighth.write_bytes(content)
    daemon.start()
    again = ReferenceEngine(daemon)
    try:
        _, admission = again.admit("carol", TOKENS)
        cache, restored = again.restore(admission, TOKENS)
        assert restored == 7 * BLOCK
        rest = TOKENS[restored:]
        logits = again.continuation(cache, rest + QUESTION)[:, len(rest) :]
        # Computed in other runs of tokens, so rounded differently, but of the same text.
        assert torch.allclose(logits.float(), right.float(), atol=0.5)
        assert daemon.count("integrity_failure") == 1

        daemon.admin("erase_session", tenant="carol", session="default")
        _, admission = again.admit("carol", TOKENS)
        assert again.restore(admission, TOKENS)[1] == 0
    finally:
        again.close()
