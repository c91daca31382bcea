"""What the TensorRT-LLM adapter decides without a daemon: names, plans, refusals, scrubs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from kvrun.engines.blocks import OpenBlock
from kvrun.engines.tensorrt_llm import governance, interface
from kvrun.engines.tensorrt_llm.connector import KvrunScheduler, KvrunWorker
from kvrun.engines.tensorrt_llm.governance import EngineSettingError
from kvrun.engines.tensorrt_llm.plan import NoSuchBlockError, RequestPlan
from kvrun.engines.tensorrt_llm.scrubbing import FinishedBlocks
from kvrun.engines.tensorrt_llm.tokens import block_hashes, salt_number
from kvrun.instance.protocol import Scrubbed
from support.executor import BLOCK, llm_args


def test_a_salts_number_is_the_beginning_of_its_blake3() -> None:
    pytest.importorskip("blake3")
    # BLAKE3 of "abc" begins 6437b3ac38465133 (the algorithm's published test value).
    assert salt_number("abc") == int.from_bytes(bytes.fromhex("6437b3ac38465133"), "little")


@given(st.lists(st.integers(0, 2**31), min_size=0, max_size=90), st.data())
def test_a_blocks_hash_covers_every_token_before_its_end(
    tokens: list[int], data: st.DataObject
) -> None:
    hashes = block_hashes(tokens, BLOCK)
    assert len(hashes) == len(tokens) // BLOCK == len(set(hashes))
    if tokens:
        at = data.draw(st.integers(0, len(tokens) - 1))
        changed = block_hashes([*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]], BLOCK)
        assert changed[: at // BLOCK] == hashes[: at // BLOCK]
        assert not set(changed[at // BLOCK :]) & set(hashes)
    assert not set(hashes) & set(block_hashes(tokens, BLOCK, "lora-1"))


@given(
    st.integers(1, 100),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.booleans(),
)
def test_no_block_is_sealed_before_all_of_it_is_computed(
    loaded: int, chunks: list[int], newer: bool
) -> None:
    total = loaded + sum(chunks)
    plan = RequestPlan(b"o", sealed=loaded // BLOCK)
    computed, first, given_out = loaded, True, list[int]()
    blocks = list(range(-(-total // BLOCK)))
    for chunk in chunks:
        position = computed - (loaded if first and not newer else 0)
        new = list(range(total)) if first else []
        plan.step(new, blocks if first else [], position, chunk, first=first)
        computed, first = computed + chunk, False
        for index, block in plan.saves(BLOCK):
            assert (index + 1) * BLOCK <= computed
            assert block == index
            given_out.append(index)
    assert given_out == sorted(set(given_out))


def test_opened_blocks_without_a_place_are_a_broken_promise() -> None:
    opened = [OpenBlock(0, 0, 0), OpenBlock(1, 0, 0)]
    plan = RequestPlan(b"o", loading=list(opened))
    plan.allocated([5, 6, 7])
    assert plan.loads() == [(opened[0], 5), (opened[1], 6)]
    assert plan.loads() == []
    for ids in ([5], [5, -1, 7]):
        plan = RequestPlan(b"o", loading=list(opened))
        plan.allocated(ids)
        with pytest.raises(NoSuchBlockError):
            plan.loads()
    plan.step([1] * 40, [5, -1, 7], 0, 40, first=True)
    assert plan.saves(BLOCK) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_parallel_size": 2}, "2 ranks"),
        ({"pipeline_parallel_size": 3}, "3 ranks"),
        ({"cache_enable_block_reuse": True}, "enable_block_reuse"),
        ({"cache_host_cache_size": 1}, "host_cache_size"),
        ({"cache_event_buffer_max_size": 8}, "event_buffer_max_size"),
        ({"cache_max_attention_window": [128]}, "max_attention_window"),
        ({"max_beam_width": 4}, "max_beam_width"),
        ({"speculative_config": object()}, "speculative"),
        ({"disable_overlap_scheduler": False}, "overlap scheduler"),
        ({"enable_lora": True}, "LoRA"),
    ],
)
def test_both_halves_refuse_what_would_leak_or_break_a_promise(
    change: dict[str, Any], message: str
) -> None:
    for half in (KvrunScheduler, KvrunWorker):
        with pytest.raises(EngineSettingError, match=message):
            half(llm_args(**change))


@pytest.mark.parametrize(
    ("version", "known", "message"),
    [
        ("1.1.0", True, r"1\.1\.0 is installed.* for 1\.2 and later"),
        ("0.21.0rc1", True, r"1\.2 and later"),
        ("main", True, r"1\.2 and later"),
        ("9.0.0", False, r"9\.0\.0 has no connector interface"),
        ("1.2.1", True, None),
        ("1.3.0rc11", True, None),
        ("2.0", True, None),
    ],
)
def test_a_release_that_kvrun_was_not_written_for_is_refused(
    version: str, known: bool, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "engine_version", lambda: version)
    if known:
        monkeypatch.setattr(governance, "connector_bases", lambda: (object, object))
    if message is None:
        governance.check_engine(llm_args())
        return
    with pytest.raises(EngineSettingError, match=message) as refused:
        KvrunWorker(llm_args())
    assert refused.value.hint


@pytest.mark.parametrize("name", interface.MODULES)
def test_the_base_classes_are_found_where_either_release_has_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interface.connector_bases() == (
        interface.SchedulerInterface,
        interface.WorkerInterface,
    )
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    module = sys.modules[name]
    scheduler, worker = type("S", (), {}), type("W", (), {})
    module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker = scheduler, worker  # type: ignore[attr-defined]
    assert interface.connector_bases() == (scheduler, worker)


def test_a_scrub_is_answered_with_what_is_held_and_again_when_it_is_zero() -> None:
    finished = FinishedBlocks()
    finished.ask(1, [b"alice"], False)
    finished.ask(2, [b"carol"], False)
    running = [(b"alice", 3), (b"bob", 5), (b"", 1)]
    # A request that nobody can name counts for every scrub.
    assert finished.progress(running) == [Scrubbed(1, 0, 0, 4), Scrubbed(2, 0, 0, 1)]
    assert finished.progress(running) == []
    finished.ended(7, b"alice", [1, 2, 3])
    assert finished.progress([(b"", 1)]) == []
    assert finished.pages([7, 8]) == [1, 2, 3]
    finished.zeroed([7])
    assert finished.progress([]) == [Scrubbed(1, 0, 3, 0), Scrubbed(2, 0, 0, 0)]
    finished.ask(1, [b"alice"], False)
    assert finished.progress([]) == [Scrubbed(1, 0, 3, 0)]
    finished.connection(2)
    assert finished.progress([(b"alice", 1)]) == []
