"""With too little KV memory requests are preempted; the answers are those of a plain vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.client import claimed, prompt
from support.daemon import Daemon
from support.engine import Ask, Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = [prompt(110 + number, 500) for number in range(8)]
ANSWER = 24
# A block of 128 tokens takes 512 KiB: four prompts of four blocks fit, their answers do not.
BUDGET = 9 * 2**20


def test_preempted_requests_get_the_answers_of_an_engine_without_kvrun(
    daemon: Daemon, tiny_llama: Path, module_folder: Path
) -> None:
    options = {"kv_cache_memory_bytes": BUDGET, "max_model_len": 1024}
    plain = Engine(tiny_llama, None, module_folder / "plain.log", **options)
    try:
        right = [plain.ask(Ask(tokens, max_tokens=ANSWER))[0].tokens for tokens in PROMPTS]
    finally:
        plain.stop()
    governed = Engine(tiny_llama, daemon.socket, module_folder / "engine.log", **options)
    try:
        for round_number in range(2):
            asks = [
                claimed(daemon, f"tenant-{number}", tokens, max_tokens=ANSWER)[1]
                for number, tokens in enumerate(PROMPTS)
            ]
            answers = governed.ask(*asks)
            assert [answer.tokens for answer in answers] == right, f"round {round_number}"
        assert governed.counters()["vllm:num_preemptions"] > 0
    finally:
        governed.stop()
    assert daemon.count("sealed") > 0
    assert daemon.count("opened") > 0
