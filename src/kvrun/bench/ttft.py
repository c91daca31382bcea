"""``kvrun bench ttft``: what the governed cache costs and saves until the first token.

Three stacks of one model stay up together and are asked one after the other: the engine alone,
with the governed cache behind the gateway, and the same with a daemon that copies instead of
sealing. All engines get the same threads; vLLM is compiled, as it would be in use. A round sends
each stack the same fresh prompt; with vLLM's own prefix cache off (llama.cpp keeps none), sending
it again is a reload from the memory tier. Every request is sent to a machine at rest: an engine's
threads spin on for a while after their last token, at the cost of whoever comes next.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import MIN_PAIRS, Goal, compare_pairs
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.launch.stack import Stack, StackOptions

DEFAULT_TOKENS = (4_000, 16_000, 30_000)
_SHORT_PROMPT_TOKENS, _SHORT_ROUNDS = 8_000, 15
CONTEXT_WINDOW = 32_000
_RELOADS = 3
_BLOCK_TOKENS = 128
_SEALED_TIMEOUT_S = 20.0
_REST_S = 0.7
_COLD_GOAL = Goal(1.03, at_most=True)
_RELOAD_GOAL = Goal(0.1, at_most=True)
_SEALING_GOAL = Goal(1.05, at_most=True)
_DAEMON_OWN_BYTES = 200 * 10**6
_VOCABULARY = range(300, 1000)
_LABELS = {"vllm": "vLLM", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class TtftSettings:
    """``tokens``: prompt lengths. ``model``: a folder or one of kvrun's names.

    ``rounds`` a length; None: as many as its noise asks for.
    """

    tokens: tuple[int, ...] = DEFAULT_TOKENS
    model: str = "tiny"
    engine: str = "vllm"
    dtype: str = "bfloat16"
    rounds: int | None = None
    seed: int = 0


@dataclass(slots=True)
class _Times:
    """Seconds to the first token, one entry a round."""

    plain: list[float] = field(default_factory=list)
    plain_again: list[float] = field(default_factory=list)
    governed: list[float] = field(default_factory=list)
    reload: list[float] = field(default_factory=list)
    unsealed_reload: list[float] = field(default_factory=list)


def run_ttft_bench(
    settings: TtftSettings, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Start the stacks, measure every prompt length, stop them."""
    rng = random.Random(settings.seed)  # noqa: S311 - prompts and bootstrap samples, no secret
    rows: list[Row] = []
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kvb-")))
        plain, governed, unsealed = (
            running.enter_context(_running(folder / name, name, settings, progress))
            for name in ("plain", "governed", "unsealed")
        )
        for stack in (plain, governed, unsealed):
            _ask(stack, _prompt(rng, 2_000))
        for tokens in settings.tokens:
            # Short prompts are noisier and cheaper.
            usual = _SHORT_ROUNDS if tokens <= _SHORT_PROMPT_TOKENS else MIN_PAIRS
            rounds = settings.rounds or usual
            times = _Times()
            for number in range(rounds):
                progress(f"{tokens} tokens, round {number + 1} of {rounds}")
                _round(times, plain, governed, unsealed, tokens, rng)
            rows += _rows(tokens, times, rng, _LABELS[settings.engine])
        rows.append(_memory_row(governed))
    return Report(
        bench="ttft", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


@contextlib.contextmanager
def _running(
    folder: Path, kind: str, settings: TtftSettings, progress: Callable[[str], None]
) -> Iterator[Stack]:
    options = StackOptions(
        model=settings.model,
        engine=settings.engine,
        context_window=CONTEXT_WINDOW,
        memory_bytes=1 << 30,
        disk_bytes=1 << 30,
        governed=kind != "plain",
        instance_module="kvrun.bench.unsealed_instance" if kind == "unsealed" else "kvrun",
        dtype=settings.dtype,
        enforce_eager=False,
        engine_arguments=("--no-enable-prefix-caching",) if settings.engine == "vllm" else (),
        max_num_seqs=2,
        block_tokens=_BLOCK_TOKENS,
    )
    stack = Stack(folder, options, say=progress)
    try:
        progress(f"starting the {kind} stack")
        stack.start()
        yield stack
    finally:
        stack.stop()


def _round(
    times: _Times, plain: Stack, governed: Stack, unsealed: Stack, tokens: int, rng: random.Random
) -> None:
    prompt = _prompt(rng, tokens)
    cold: list[Callable[[], None]] = [
        lambda: times.plain.append(_ask(plain, prompt)),
        lambda: times.governed.append(_ask(governed, prompt, sealed=True)),
        lambda: times.plain_again.append(_ask(plain, _prompt(rng, tokens))),
    ]
    rng.shuffle(cold)
    for measure in cold:
        measure()
    _ask(unsealed, prompt, sealed=True)
    governed.flush()
    unsealed.flush()
    sealed_times, copied_times = [], []
    for _ in range(_RELOADS):
        sealed_times.append(_ask(governed, prompt, reused=True))
        copied_times.append(_ask(unsealed, prompt, reused=True))
    times.reload.append(sorted(sealed_times)[_RELOADS // 2])
    times.unsealed_reload.append(sorted(copied_times)[_RELOADS // 2])


def _ask(stack: Stack, prompt: list[int], *, sealed: bool = False, reused: bool = False) -> float:
    """Seconds to the first token; ``sealed`` then waits until every block is in the memory tier."""
    time.sleep(_REST_S)
    answer = stack.complete("bench", prompt, 4)
    if reused and answer.cached_tokens < len(prompt) - 256:
        raise RuntimeError(f"{answer.cached_tokens} of {len(prompt)} tokens were reused")
    if sealed:
        _wait_sealed(stack, answer.request_id, len(prompt) // _BLOCK_TOKENS)
    return answer.ttft_s


def _wait_sealed(stack: Stack, request_id: str, wanted: int) -> None:
    """Wait for so many blocks; of a state of llama.cpp's, until no more of them come."""
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    before = -1
    while True:
        sealed = stack.reuse(request_id).sealed_blocks
        counted = stack.options.engine == "vllm"
        if sealed >= wanted if counted else sealed == before > 0:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sealed} blocks were sealed, {wanted} were expected")
        before = sealed
        time.sleep(0.05 if counted else 0.5)


def _prompt(rng: random.Random, tokens: int) -> list[int]:
    return [rng.choice(_VOCABULARY) for _ in range(tokens)]


def _rows(tokens: int, times: _Times, rng: random.Random, engine: str) -> list[Row]:
    size = f"{tokens // 1000}k"

    def row(metric: str, one: list[float], other: list[float], against: str, goal: Goal) -> Row:
        pairs = list(zip(one, other, strict=True))
        return ratio_row(
            f"{metric}, {size} tokens",
            compare_pairs(pairs, rng=rng),
            unit="ratio",
            against=against,
            goal=goal,
        )

    noise = compare_pairs(list(zip(times.plain, times.plain_again, strict=True)), rng=rng)
    same = ratio_row(
        f"cold TTFT, A/A, {size} tokens", noise, unit="ratio", against=f"plain {engine} and itself",
        goal=_COLD_GOAL,
    )  # fmt: skip
    added = [governed - plain for governed, plain in zip(times.governed, times.plain, strict=True)]
    return [
        _median_row(f"cold TTFT, plain {engine}, {size} tokens", times.plain),
        _median_row(f"added to cold TTFT, governed, {size} tokens", added),
        _median_row(f"reload TTFT, {size} tokens", times.reload),
        Row(metric=same.metric, value=same.value, unit="ratio", against=same.against),
        row("cold TTFT, governed", times.governed, times.plain, f"plain {engine}", _COLD_GOAL),
        row("reload TTFT, memory tier", times.reload, times.governed, "cold", _RELOAD_GOAL),
        row(
            "reload TTFT, sealed",
            times.reload,
            times.unsealed_reload,
            "the same with a copy for the cipher",
            _SEALING_GOAL,
        ),
    ]


def _median_row(metric: str, seconds: list[float]) -> Row:
    in_ms = sorted(1000 * each for each in seconds)
    against = f"median of {len(in_ms)} rounds, {in_ms[0]:.0f} to {in_ms[-1]:.0f} ms"
    return Row(metric=metric, value=in_ms[len(in_ms) // 2], unit="ms", against=against)


def _memory_row(governed: Stack) -> Row:
    own = governed.daemon_own_bytes()
    return Row(
        metric="daemon memory beyond slab and staging",
        value=own / 10**6,
        unit="MB",
        against="resident set less slab and staging pages",
        goal="<= 200",
        met=own <= _DAEMON_OWN_BYTES,
    )
