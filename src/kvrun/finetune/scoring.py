"""How well a model answers held-out examples: loss and exact matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvrun.finetune.encode import Encoded
from kvrun.finetune.tools import Tools


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``loss``: mean negative log likelihood (nats) a token of the expected answers, the token
    that ends them included. ``exact_matches``: examples whose greedy answer is the expected one.
    """

    loss: float
    exact_matches: int
    examples: int
    answer_tokens: int


def score(
    tools: Tools,
    model: Any,
    tokenizer: Any,
    examples: Sequence[Encoded],
    *,
    check_stop: Callable[[], None] = lambda: None,
    on_example: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """Score a model, one example at a time. ``check_stop`` raises where it is to end early."""
    torch = tools.torch
    model.eval()
    total, tokens, matches = 0.0, 0, 0
    with torch.inference_mode():
        for number, item in enumerate(examples, start=1):
            check_stop()
            ids = torch.tensor([item.tokens], device=tools.device)
            first = len(item.given)
            logits = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
            ).logits[0, first - 1 : -1]
            total += torch.nn.functional.cross_entropy(
                logits.float(), ids[0, first:], reduction="sum"
            ).item()
            tokens += len(item.answer)
            matches += _answers_exactly(tools, model, tokenizer, item)
            on_example(number, len(examples))
    return Score(
        loss=total / tokens, exact_matches=matches, examples=len(examples), answer_tokens=tokens
    )


def _answers_exactly(tools: Tools, model: Any, tokenizer: Any, item: Encoded) -> bool:
    given = tools.torch.tensor([item.given], device=tools.device)
    made = model.generate(
        input_ids=given,
        attention_mask=tools.torch.ones_like(given),
        max_new_tokens=len(item.answer),
        do_sample=False,
        num_beams=1,
        pad_token_id=tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else tokenizer.eos_token_id,
    )[0, given.shape[1] :]
    text = tokenizer.decode(made, skip_special_tokens=True)
    return bool(text.strip() == item.example.completion.strip())
