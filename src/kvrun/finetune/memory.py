"""How much memory a job needs, said before it takes it, and a bound for what was not foreseen.

The estimate is an upper one for LoRA on every linear layer of a transformer in 32-bit numbers, with
what a step keeps of each token for its way back. It counts the model once: pages of its files are
the system's to take back.
"""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrun.config.values import size_text
from kvrun.finetune.encode import Encoded
from kvrun.finetune.errors import FineTuneError
from kvrun.finetune.tools import Tools
from kvrun.finetune.training import LOGITS_AT_ONCE, Plan

MAX_HEADER_BYTES = 100 << 20
"""What safetensors itself allows."""
_MAX_CONFIG_BYTES = 16 << 20
_FLOAT, _ID = 4, 40
"""Bytes of a number in training, and of a token id in a list."""
_ADAPTER_COPIES = 5
"""A trained number, its gradient, the optimizer's two, and the checkpoint's."""
_HIDDEN_KEPT, _INTERMEDIATE_KEPT, _LOGITS_KEPT = 20, 7, 4
"""Numbers that a step keeps of a token: of each width of a layer, and of its logits."""
_TEXT_COPIES = 4
_BESIDE_BYTES = 256 << 20
"""What libraries take for themselves."""
_SAID = ("allocate memory", "out of memory", "bad_alloc")
_LESS = "Lower rank or batch_size, give shorter examples or fewer, or take a smaller model."


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides a job's memory. ``sides``: both sides of all matrices together."""

    weights_bytes: int
    sides: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes by what they are for."""

    model: int
    adapter: int
    step: int
    data: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.model + self.adapter + self.step + self.data


def shape_of(folder: Path) -> Shape:
    """The shape of the model in a folder, from its configuration and the heads of its weights.

    Raises FineTuneError where they cannot be read.
    """
    try:
        with (folder / "config.json").open("rb") as file:
            config = json.loads(file.read(_MAX_CONFIG_BYTES))
        text = {**config, **(config.get("text_config") or {})}
        numbers = sides = 0
        for path in sorted(folder.glob("*.safetensors")):
            for size in _sizes(path):
                numbers += math.prod(size)
                sides += sum(size[-2:]) * math.prod(size[:-2]) if len(size) > 1 else 0
        wide = "float32" in str(text.get("dtype") or text.get("torch_dtype") or "float32")
        hidden = int(text["hidden_size"])
        return Shape(
            weights_bytes=numbers * (4 if wide else 2),
            sides=sides,
            layers=int(text["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(text.get("intermediate_size") or 4 * hidden),
            vocabulary=int(text["vocab_size"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise FineTuneError(f"the model in {folder} cannot be read: {said}") from None


def need_of(
    shape: Shape, plan: Plan, examples: Sequence[Encoded] = (), data_bytes: int = 0
) -> Need:
    """What a plan needs with these examples; without them, what it needs whatever they are."""
    longest = max((len(item.tokens) for item in examples), default=0)
    at_once = max(longest, min(plan.batch_size * longest, LOGITS_AT_ONCE // shape.vocabulary))
    kept = _HIDDEN_KEPT * shape.hidden + _INTERMEDIATE_KEPT * shape.intermediate
    of_token = _FLOAT * (shape.layers * kept + _LOGITS_KEPT * shape.vocabulary + 2 * longest)
    return Need(
        model=shape.weights_bytes,
        adapter=_FLOAT * _ADAPTER_COPIES * plan.rank * shape.sides,
        step=at_once * of_token,
        data=_TEXT_COPIES * data_bytes + _ID * sum(len(item.tokens) for item in examples),
    )


def check_need(need: Need, plan: Plan, allowed_bytes: int, limit: str) -> None:
    """Raise FineTuneError where more is needed than ``limit`` allows."""
    if need.total > allowed_bytes:
        raise FineTuneError(
            f"the job needs up to {size_text(need.total)} of memory, and {limit} allows"
            f" {size_text(allowed_bytes)}: {size_text(need.model)} for the model,"
            f" {size_text(need.adapter)} for an adapter of rank {plan.rank},"
            f" {size_text(need.step)} for a step, {size_text(need.data)} for the examples",
            hint=_LESS,
        )


def allowed_here(tools: Tools, allowed_bytes: int) -> int:
    """What may be taken where a job computes: on a GPU no more than is free there."""
    if tools.device != "cuda":
        return allowed_bytes
    free: int = tools.torch.cuda.mem_get_info()[0]
    return min(allowed_bytes, free)


@contextmanager
def within(tools: Tools, allowed_bytes: int | None, limit: str) -> Iterator[None]:
    """Hold the process, where it computes on the CPU, to so many bytes more than it has, and a
    quarter more for what was not foreseen.

    Raises FineTuneError in place of what a library says when it gets no memory.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = _held_bytes()
    if allowed_bytes is not None and tools.device == "cpu" and held:
        bound = held + allowed_bytes + allowed_bytes // 4 + _BESIDE_BYTES
        # A bound that somebody set already stays: it can be lowered only.
        most = bound if before[1] == resource.RLIM_INFINITY else min(bound, before[1])
        resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _is_memory(str(error)):
            raise
        raise FineTuneError(
            f"the job got no more memory ({limit})",
            hint=_LESS,
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def half_of_the_machine() -> int:
    """Half of this machine's memory, or of what its container may have."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        told = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        whole = min(whole, int(told))
    except (OSError, ValueError):
        pass  # no container, or one without a bound
    return whole // 2


def _sizes(path: Path) -> Iterator[tuple[int, ...]]:
    """The shapes of all tensors in a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} has a head of {length} bytes")
        head: dict[str, Any] = json.loads(file.read(length))
    for name, entry in head.items():
        if name != "__metadata__":
            yield tuple(int(side) for side in entry["shape"])


def _held_bytes() -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _is_memory(text: str) -> bool:
    return any(said in text.lower() for said in _SAID)
