"""``kvrun bench ttft``: what the governed cache costs and saves until the first token.

Two stacks of one model stay up together and are asked one after the other: the engine alone, and
with the governed cache behind the gateway. What the cipher costs a reload is measured in the latter
alone: its daemon seals one prompt and copies another, so that no difference between two processes
is taken for the cipher's. All engines get the same threads;
vLLM is compiled, as it would be in use. A round sends each stack the same fresh prompt; with vLLM's
own prefix cache off, and SGLang's emptied before (llama.cpp keeps none), sending it again is a
reload from the memory tier. At the end the daemon alone is restarted, and each prompt comes once
from disk, whose files the system may still hold in memory. Every request is sent to a machine at
rest: an engine's threads spin on for a while after their last token, at the cost of whoever comes
next.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvrun.bench.copying_instance import SWITCH
from kvrun.bench.machine import describe_commit, describe_machine
from kvrun.bench.paired import MIN_PAIRS, Goal, compare_pairs
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.errors import KvrunError
from kvrun.launch.processes import INSTANCE
from kvrun.launch.stack import Stack, StackOptions

DEFAULT_TOKENS = (4_000, 16_000, 30_000)
_SHORT_PROMPT_TOKENS, _SHORT_ROUNDS = 8_000, 15
_ROOM_TOKENS = 1_000
_RELOADS = 3
_BLOCK_TOKENS = 128
_SEALED_TIMEOUT_S = 20.0
_FOUND_TIMEOUT_S = 60.0
# On two cores a request 0.7 s after another engine's last token took 0.6 s longer at times.
_REST_S = 1.6
_PUT_OFF_S = 4.0
_COLD_GOAL = Goal(1.03, at_most=True)
_RELOAD_GOAL = Goal(0.1, at_most=True)
_SEALING_GOAL = Goal(1.05, at_most=True)
_DAEMON_OWN_BYTES = 200 * 10**6
_VOCABULARY = range(300, 1000)
_LABELS = {"vllm": "vLLM", "llama.cpp": "llama.cpp", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True)
class TtftSettings:
    """``tokens``: prompt lengths. ``model``: a folder or one of kvrun's names.

    ``rounds`` a length; None: as many as its noise asks for. ``copied``: also have a prompt copied
    instead of sealed, which says what the cipher costs a reload.
    """

    tokens: tuple[int, ...] = DEFAULT_TOKENS
    model: str = "tiny"
    engine: str = "vllm"
    dtype: str = "bfloat16"
    rounds: int | None = None
    copied: bool = True
    seed: int = 0


@dataclass(slots=True)
class _Times:
    """Seconds to the first token and the prompt, one entry a round."""

    plain: list[float] = field(default_factory=list)
    plain_again: list[float] = field(default_factory=list)
    governed: list[float] = field(default_factory=list)
    reload: list[float] = field(default_factory=list)
    copied_reload: list[float] = field(default_factory=list)
    disk_reload: list[float] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)


def run_ttft_bench(
    settings: TtftSettings, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Start the stacks, measure every prompt length, stop them."""
    rng = random.Random(settings.seed)  # noqa: S311 - prompts and bootstrap samples, no secret
    measured: dict[int, _Times] = {}
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kvb-")))
        plain, governed = stacks = [
            running.enter_context(_running(folder / kind, kind, settings, progress))
            for kind in ("plain", "governed")
        ]
        switch = folder / "governed" / SWITCH if settings.copied else None
        for stack in stacks:
            _ask(stack, _prompt(rng, 2_000))
        for tokens in settings.tokens:
            # Short prompts are noisier and cheaper.
            usual = _SHORT_ROUNDS if tokens <= _SHORT_PROMPT_TOKENS else MIN_PAIRS
            rounds = settings.rounds or usual
            times = measured[tokens] = _Times()
            for number in range(rounds):
                progress(f"{tokens} tokens, round {number + 1} of {rounds}")
                _round(times, plain, governed, switch, tokens, rng)
        memory = _memory_row(governed)
        progress("restarting the daemon: what follows comes from disk")
        _restart_daemon(governed)
        for times in measured.values():
            for prompt in times.prompts:
                times.disk_reload.append(_ask(governed, prompt, reused=True, from_disk=True))
    label = _LABELS[settings.engine]
    rows = [row for tokens, times in measured.items() for row in _rows(tokens, times, rng, label)]
    rows.append(memory)
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
        context_window=max(settings.tokens) + _ROOM_TOKENS,
        memory_bytes=1 << 30,
        disk_bytes=4 << 30,
        governed=kind != "plain",
        instance_module="kvrun.bench.copying_instance" if settings.copied else "kvrun",
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
    times: _Times,
    plain: Stack,
    governed: Stack,
    switch: Path | None,
    tokens: int,
    rng: random.Random,
) -> None:
    prompt = _prompt(rng, tokens)
    cold = [
        (plain, prompt, times.plain),
        (plain, _prompt(rng, tokens), times.plain_again),
        (governed, prompt, times.governed),
    ]
    rng.shuffle(cold)
    for stack, asked, seconds in cold:
        seconds.append(_ask(stack, asked, sealed=stack is governed))
    reloading = [(prompt, times.reload)]
    if switch is not None:
        copied = _prompt(rng, tokens)
        switch.touch()
        _ask(governed, copied, sealed=True)
        switch.unlink()
        reloading.append((copied, times.copied_reload))
    measured: list[list[float]] = [[] for _ in reloading]
    for _ in range(_RELOADS):
        turns = list(zip(reloading, measured, strict=True))
        rng.shuffle(turns)
        for (asked, _), seconds in turns:
            seconds.append(_ask(governed, asked, reused=True))
    for (_, medians), seconds in zip(reloading, measured, strict=True):
        medians.append(sorted(seconds)[_RELOADS // 2])
    times.prompts.append(prompt)


def _restart_daemon(stack: Stack) -> None:
    """Only what is on disk is left; returns once the engine has found the daemon again."""
    stack.flush()
    stack.stop(INSTANCE)
    stack.start(INSTANCE)
    deadline = time.monotonic() + _FOUND_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = stack.complete("again", [300, 301, 302], 1)
        # The daemon may not know the request, or not answer yet.
        with contextlib.suppress(KvrunError):
            if stack.reuse(answer.request_id).prompt_tokens:
                return
        time.sleep(0.1)
    raise RuntimeError("the engine did not find the daemon again")


def _ask(
    stack: Stack,
    prompt: list[int],
    *,
    sealed: bool = False,
    reused: bool = False,
    from_disk: bool = False,
) -> float:
    """Seconds to the first token; ``sealed`` then waits until every block is in the memory tier."""
    if reused and stack.options.engine == "sglang":
        stack.empty_engine()
    time.sleep(_REST_S)
    answer = stack.complete("bench", prompt, 4)
    least = len(prompt) - 256
    if reused and answer.cached_tokens < least:
        raise RuntimeError(f"{answer.cached_tokens} of {len(prompt)} tokens were reused")
    if from_disk and stack.reuse(answer.request_id).disk_tokens < least:
        raise RuntimeError("what was reused did not come from disk")
    if sealed:
        _wait_sealed(stack, answer.request_id, len(prompt) // _BLOCK_TOKENS)
        # What the daemon puts off while an engine computes is not to meet the next request.
        stack.flush()
        time.sleep(_PUT_OFF_S)
    return answer.ttft_s


def _wait_sealed(stack: Stack, request_id: str, wanted: int) -> None:
    """Wait for so many blocks; of a state of llama.cpp's, until no more of them come."""
    deadline = time.monotonic() + _SEALED_TIMEOUT_S
    before = -1
    while True:
        sealed = stack.reuse(request_id).sealed_blocks
        counted = stack.options.engine != "llama.cpp"
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

    def row(
        metric: str, one: list[float], other: list[float], against: str, goal: Goal | None = None
    ) -> Row:
        pairs = list(zip(one, other, strict=True))
        return ratio_row(
            f"{metric}, {size} tokens",
            compare_pairs(pairs, rng=rng),
            unit="ratio",
            against=against,
            goal=goal,
        )

    added = [governed - plain for governed, plain in zip(times.governed, times.plain, strict=True)]
    rows = [
        _median_row(f"cold TTFT, plain {engine}, {size} tokens", times.plain),
        _median_row(f"added to cold TTFT, governed, {size} tokens", added),
        _median_row(f"reload TTFT, {size} tokens", times.reload),
        _median_row(f"reload TTFT, disk, {size} tokens", times.disk_reload),
        row("cold TTFT, A/A", times.plain, times.plain_again, f"plain {engine} and itself"),
        row("cold TTFT, governed", times.governed, times.plain, f"plain {engine}", _COLD_GOAL),
        row("reload TTFT, memory tier", times.reload, times.governed, "cold", _RELOAD_GOAL),
        row("reload TTFT, disk tier", times.disk_reload, times.governed, "cold, earlier"),
    ]
    if times.copied_reload:
        against = "the same with a copy for the cipher"
        rows.append(
            row("reload TTFT, sealed", times.reload, times.copied_reload, against, _SEALING_GOAL)
        )
    return rows


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
