"""The LoRA job itself: a loop over examples that can stop and go on anywhere.

What one step learns depends on the plan, its seed and the step's number alone, so a job that was
cut short ends in the same adapter as one that was not (on one machine, on a CPU).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvrun.finetune.encode import Encoded
from kvrun.finetune.errors import FineTuneCancelledError, FineTuneError
from kvrun.finetune.tools import Tools

IGNORED_LABEL = -100
_CLIP_NORM = 1.0
LOGITS_AT_ONCE = 1 << 26
"""Logits that are held at once: a batch is learned in parts where its vocabulary is large."""
_WARMUP_SHARE = 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to learn. ``rank`` and ``alpha`` are LoRA's; every linear layer gets an adapter."""

    epochs: int = 3
    batch_size: int = 4
    learning_rate: float = 2e-4
    rank: int = 8
    alpha: int = 16
    max_tokens: int = 1024
    seed: int = 0
    checkpoint_every: int = 50


def check_plan(plan: Plan) -> None:
    """Raise FineTuneError for numbers that cannot work."""
    for name, value, most in (
        ("epochs", plan.epochs, 1000),
        ("batch_size", plan.batch_size, 1024),
        ("rank", plan.rank, 1024),
        ("alpha", plan.alpha, 4096),
        ("max_tokens", plan.max_tokens, 1_000_000),
        ("checkpoint_every", plan.checkpoint_every, 1_000_000),
    ):
        if not 1 <= value <= most:
            raise FineTuneError(f"{name} = {value} must be from 1 to {most}")
    if not 0 < plan.learning_rate <= 1:
        raise FineTuneError(f"learning_rate = {plan.learning_rate} must be above 0 and at most 1")
    if not 0 <= plan.seed < 2**31:
        raise FineTuneError(f"seed = {plan.seed} must be from 0 to {2**31 - 1}")


def total_steps(examples: int, plan: Plan) -> int:
    """How many steps a plan takes with so many examples."""
    return plan.epochs * math.ceil(examples / plan.batch_size)


def train(
    tools: Tools,
    model: Any,
    examples: Sequence[Encoded],
    plan: Plan,
    checkpoint: Path,
    *,
    binding: str,
    should_stop: Callable[[], bool],
    on_step: Callable[[int, int, float], None],
) -> Any:
    """The model with a trained adapter around it.

    ``checkpoint`` is written every so often and read where it exists; ``binding`` names what it
    belongs to. ``on_step(step, steps, loss)`` is told of each step.

    Raises FineTuneCancelledError, with a checkpoint written, once ``should_stop`` says so;
    FineTuneError for a checkpoint of another job.
    """
    torch = tools.torch
    torch.manual_seed(plan.seed)
    wrapped = tools.peft.get_peft_model(model, _lora(tools, plan))
    trained = {name: p for name, p in wrapped.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=plan.learning_rate, weight_decay=0.0)
    steps = total_steps(len(examples), plan)
    step = _load(torch, checkpoint, binding, trained, optimizer)
    wrapped.eval()  # no dropout: a step is to depend on nothing but its number
    while step < steps:
        if should_stop():
            _save(torch, checkpoint, binding, step, trained, optimizer)
            raise FineTuneCancelledError(f"stopped after {step} of {steps} steps")
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * _rate(step, steps)
        optimizer.zero_grad(set_to_none=True)
        value = _learn(tools, wrapped, _batch(torch, examples, plan, step))
        if not math.isfinite(value):
            raise FineTuneError(
                f"the loss is {value} at step {step + 1}", hint="Lower --learning-rate."
            )
        torch.nn.utils.clip_grad_norm_(trained.values(), _CLIP_NORM)
        optimizer.step()
        step += 1
        if step % plan.checkpoint_every == 0 or step == steps:
            _save(torch, checkpoint, binding, step, trained, optimizer)
        on_step(step, steps, value)
    return wrapped


def _lora(tools: Tools, plan: Plan) -> Any:
    return tools.peft.LoraConfig(
        r=plan.rank,
        lora_alpha=plan.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up for a twentieth, then down to nothing."""
    warmup = max(1, round(steps * _WARMUP_SHARE))
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def _batch(torch: Any, examples: Sequence[Encoded], plan: Plan, step: int) -> Sequence[Encoded]:
    """The examples of a step, each epoch in an order of its own."""
    each = math.ceil(len(examples) / plan.batch_size)
    epoch, place = divmod(step, each)
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + epoch)
    order = torch.randperm(len(examples), generator=generator).tolist()
    chosen = order[place * plan.batch_size : (place + 1) * plan.batch_size]
    return [examples[index] for index in chosen]


def _learn(tools: Tools, model: Any, batch: Sequence[Encoded]) -> float:
    """Add a batch's gradients; the mean negative log likelihood a token of its answers."""
    width = max(len(item.tokens) for item in batch)
    vocabulary = model.config.get_text_config().vocab_size
    at_once = max(1, LOGITS_AT_ONCE // (width * vocabulary))
    tokens = sum(len(item.answer) for item in batch)
    total = 0.0
    for first in range(0, len(batch), at_once):
        loss = _summed_loss(tools, model, batch[first : first + at_once]) / tokens
        loss.backward()
        total += loss.item()
    return total


def _summed_loss(tools: Tools, model: Any, batch: Sequence[Encoded]) -> Any:
    torch, device = tools.torch, tools.device
    width = max(len(item.tokens) for item in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    labels = torch.full((len(batch), width), IGNORED_LABEL, dtype=torch.long)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    for row, item in enumerate(batch):
        size = len(item.tokens)
        ids[row, :size] = torch.tensor(item.tokens)
        labels[row, len(item.given) : size] = torch.tensor(item.answer)
        mask[row, :size] = 1
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].float().reshape(-1, logits.shape[-1]),
        labels[:, 1:].reshape(-1).to(device),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )


def _save(
    torch: Any, path: Path, binding: str, step: int, trained: dict[str, Any], optimizer: Any
) -> None:
    fresh = path.with_suffix(".new")
    content = {
        "binding": binding,
        "step": step,
        "adapter": {name: value.detach() for name, value in trained.items()},
        "optimizer": optimizer.state_dict(),
    }
    with fresh.open("wb") as file:
        fresh.chmod(0o600)
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _load(torch: Any, path: Path, binding: str, trained: dict[str, Any], optimizer: Any) -> int:
    """The step after which the checkpoint was written; 0 without one."""
    if not path.exists():
        return 0
    try:
        # weights_only: tensors and numbers, no objects that could run code.
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["binding"] != binding:
            raise FineTuneError(
                f"{path} is of a job with other data, another model or another plan",
                hint="Go on with what the job began with, or delete it.",
            )
        for name, value in trained.items():
            value.data.copy_(content["adapter"][name])
        optimizer.load_state_dict(content["optimizer"])
        return int(content["step"])
    except FineTuneError:
        raise
    except Exception as error:
        raise FineTuneError(
            f"the checkpoint {path} is damaged: {error}", hint="Delete the job and begin anew."
        ) from None
