"""From an example to token ids: which are given, and which are to be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvrun.finetune.dataset import Example
from kvrun.finetune.errors import FineTuneError

_NAMED_LINES = 10


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of what is given, and of the answer with the token that ends it."""

    example: Example
    given: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of it."""
        return self.given + self.answer


def encode_all(tokenizer: Any, examples: Sequence[Example], max_tokens: int) -> list[Encoded]:
    """Every example as tokens. Nothing is cut off.

    Raises FineTuneError that names the lines with more than ``max_tokens`` tokens, and for a
    conversation where the tokenizer has no chat template.
    """
    encoded = [_encode(tokenizer, example) for example in examples]
    long = [item for item in encoded if len(item.tokens) > max_tokens]
    if long:
        named = ", ".join(
            f"line {item.example.line}: {len(item.tokens)}" for item in long[:_NAMED_LINES]
        )
        more = f" and {len(long) - _NAMED_LINES} more" if len(long) > _NAMED_LINES else ""
        raise FineTuneError(
            f"examples have more than {max_tokens} tokens: {named}{more}",
            hint="Shorten them, or raise --max-tokens.",
        )
    return encoded


def _encode(tokenizer: Any, example: Example) -> Encoded:
    if example.turns:
        if not getattr(tokenizer, "chat_template", None):
            raise FineTuneError(
                f"line {example.line} is a conversation, and the model has no chat template",
                hint='Use {"prompt": ..., "completion": ...} lines with this model.',
            )
        turns = [{"role": turn.role, "content": turn.content} for turn in example.turns]
        try:
            text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template raises whatever its author chose
            raise FineTuneError(
                f"line {example.line} does not fit the model's chat template: {error}"
            ) from None
        given = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        given = tokenizer(example.prompt)["input_ids"]
    answer = tokenizer(example.completion, add_special_tokens=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        answer = [*answer, tokenizer.eos_token_id]
    if not given or not answer:
        raise FineTuneError(f"line {example.line} is empty once it is tokens")
    return Encoded(example, tuple(given), tuple(answer))
