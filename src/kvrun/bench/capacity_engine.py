"""``kvrun bench capacity --engine``: more conversations than the engine's memory holds, for real.

vLLM on this machine with room for a few contexts serves many sessions one after the other, again
and again. By the time a session comes back the engine has forgotten it; its prompt comes from the
memory tier, which holds half of the sessions, and from the disk tier. Outputs are compared with
those of the first round, which nothing was reused for.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import Goal
from kvrun.bench.report import Report, Row
from kvrun.instance.handles import Reuse
from kvrun.launch.client import Completion
from kvrun.launch.stack import Stack, StackOptions

_REUSE_GOAL = Goal(0.95)
_SAME_GOAL = Goal(1)
_BLOCK_TOKENS = 128
_KV_BYTES_PER_TOKEN = 4 * 2 * 2 * 64 * 4
"""The tiny model's: layers, keys and values, heads, head size, float32."""
_ANSWER_TOKENS = 8
_SEALED_TIMEOUT_S = 60.0
_VOCABULARY = range(300, 1000)


@dataclass(frozen=True, slots=True)
class EngineCapacitySettings:
    """``sessions`` with contexts of ``blocks`` blocks of 128 tokens, ``budget`` of which fit."""

    sessions: int = 40
    budget: int = 8
    blocks: int = 15
    rounds: int = 2


def run_capacity_engine_bench(
    settings: EngineCapacitySettings, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Start a deployment, ask every session once cold and then ``rounds`` times more."""
    rng = random.Random(0)  # noqa: S311 - prompts
    tokens = settings.blocks * _BLOCK_TOKENS + 20
    prompts = [[rng.choice(_VOCABULARY) for _ in range(tokens)] for _ in range(settings.sessions)]
    block_bytes = _BLOCK_TOKENS * _KV_BYTES_PER_TOKEN
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kvb-")))
        # The last block of a context is not full; one page more is the engine's own.
        pages = settings.budget * (settings.blocks + 1) + 1
        stack = Stack(
            folder / "stack",
            StackOptions(
                model="tiny",
                context_window=tokens + 4 * _BLOCK_TOKENS,
                memory_bytes=settings.sessions * settings.blocks * (block_bytes + 256) // 2,
                disk_bytes=4 << 30,
                max_num_seqs=2,
                block_tokens=_BLOCK_TOKENS,
                settings={"KVRUN_ENGINE__KV_CACHE_BYTES": str(pages * block_bytes)},
            ),
            say=say,
        )
        running.callback(stack.stop)
        stack.start()
        cold = [
            _ask(stack, number, prompt, settings, say, "cold")
            for number, prompt in enumerate(prompts)
        ]
        stack.flush()
        again = [
            (number, _ask(stack, number, prompt, settings, say, f"round {turn + 1}"))
            for turn in range(settings.rounds)
            for number, prompt in enumerate(prompts)
        ]
        reused = [stack.reuse(answer.request_id) for _, answer in again]
    same = sum(answer.text == cold[number].text for number, answer in again)
    return Report(
        bench="capacity",
        machine=describe_machine(),
        commit=describe_commit(),
        rows=tuple(_rows(settings, tokens, reused, same)),
    )


def _ask(
    stack: Stack,
    number: int,
    prompt: list[int],
    settings: EngineCapacitySettings,
    say: Callable[[str], None],
    turn: str,
) -> Completion:
    """One request; the first of a session returns when its blocks are sealed."""
    say(f"{turn}, session {number + 1} of {settings.sessions}")
    answer = stack.complete(f"session-{number}", prompt, _ANSWER_TOKENS)
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    while turn == "cold" and stack.reuse(answer.request_id).sealed_blocks < settings.blocks:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {settings.blocks} blocks were sealed")
        time.sleep(0.05)
    return answer


def _rows(
    settings: EngineCapacitySettings, tokens: int, reused: list[Reuse], same: int
) -> list[Row]:
    asked = tokens * len(reused)
    from_memory = sum(reuse.memory_tokens for reuse in reused)
    from_disk = sum(reuse.disk_tokens for reuse in reused)
    from_engine = sum(reuse.engine_tokens for reuse in reused)
    share = (from_memory + from_disk) / asked
    what = (
        f"{settings.sessions} sessions of {tokens:,} tokens round-robin, "
        f"room for {settings.budget} in the engine"
    )
    return [
        Row(
            metric="prompt tokens reused from the tiers",
            value=share,
            unit="of all",
            against=f"vLLM on this machine, {what}; memory {from_memory / asked:.3f}, "
            f"disk {from_disk / asked:.3f}, the engine's own {from_engine / asked:.3f}",
            goal=str(_REUSE_GOAL),
            met=_REUSE_GOAL.holds(share),
        ),
        Row(
            metric="answers that are the same as without reuse",
            value=same / len(reused),
            unit="of all",
            against=f"{same} of {len(reused)} greedy answers of {_ANSWER_TOKENS} tokens",
            goal=str(_SAME_GOAL),
            met=_SAME_GOAL.holds(same / len(reused)),
        ),
    ]
