"""Examples to learn from and to be measured by: JSON Lines, checked line by line. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from kvrun.finetune.errors import FineTuneError

MAX_FILE_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 20
MAX_EXAMPLES = 1_000_000
MAX_TURNS = 256
ROLES = ("system", "user", "assistant")
HELD_OUT_PERCENT = 10
MAX_HELD_OUT = 200
_NAMED_LINES = 10


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """What is asked and what should be answered; ``line`` is its place in the file, from 1.

    A ``prompt`` of text, or the ``turns`` of a conversation before the answer.
    """

    line: int
    completion: str
    prompt: str = ""
    turns: tuple[Turn, ...] = ()

    @property
    def digest(self) -> bytes:
        """Names the content, whatever line it stands on."""
        turns = [[turn.role, turn.content] for turn in self.turns]
        content = json.dumps([self.prompt, turns, self.completion], ensure_ascii=False)
        return sha256(content.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file's examples; ``sha256`` (hex) and ``size_bytes`` are the file's."""

    examples: tuple[Example, ...]
    sha256: str
    size_bytes: int


def parse_dataset(data: bytes, name: str) -> Dataset:
    """The examples in ``data``, the content of the file ``name``.

    Each line is an object with ``prompt`` and ``completion``, or with ``messages``, of which the
    last is the assistant's. Empty lines count and say nothing. Raises FineTuneError that names the
    first lines that are wrong, and what is wrong with them.
    """
    if len(data) > MAX_FILE_BYTES:
        raise FineTuneError(f"{name} has {len(data)} bytes; at most {MAX_FILE_BYTES} are allowed")
    examples: list[Example] = []
    wrong: list[str] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            examples.append(_example(number, line))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"; and {len(wrong) - _NAMED_LINES} more" if len(wrong) > _NAMED_LINES else ""
        raise FineTuneError(
            f"{name}: {'; '.join(wrong[:_NAMED_LINES])}{more}",
            hint='A line is {"prompt": "...", "completion": "..."} or {"messages": [...]}.',
        )
    if not examples:
        raise FineTuneError(f"{name} holds no example")
    if len(examples) > MAX_EXAMPLES:
        raise FineTuneError(f"{name} has {len(examples)} lines; at most {MAX_EXAMPLES} are allowed")
    return Dataset(tuple(examples), sha256(data).hexdigest(), len(data))


def hold_out(
    examples: Sequence[Example], seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Examples to train on and, apart from them, examples to evaluate with.

    One in ten distinct examples is held out, at least one and at most 200, chosen by a hash of
    ``seed`` and content: the same file and seed give the same split, in whatever order its lines
    are. Equal examples stay on one side. Raises FineTuneError where fewer than two are distinct.
    """
    distinct = {example.digest for example in examples}
    if len(distinct) < 2:
        raise FineTuneError(
            "one distinct example cannot be learned from and held out at once",
            hint="Give more lines, or other ones to evaluate with (--eval).",
        )
    count = min(MAX_HELD_OUT, max(1, len(distinct) * HELD_OUT_PERCENT // 100))
    ordered = sorted(distinct, key=lambda digest: sha256(b"%d:" % seed + digest).digest())
    held = frozenset(ordered[:count])
    train = tuple(example for example in examples if example.digest not in held)
    evaluation: dict[bytes, Example] = {}
    for example in examples:
        if example.digest in held:
            evaluation.setdefault(example.digest, example)
    return train, tuple(evaluation.values())


def overlap(train: Iterable[Example], evaluation: Iterable[Example]) -> int:
    """How many examples of the evaluation were trained on word for word."""
    seen = {example.digest for example in train}
    return sum(example.digest in seen for example in evaluation)


def _example(number: int, line: bytes) -> Example:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} bytes; at most {MAX_LINE_BYTES} are allowed")
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if set(value) == {"prompt", "completion"}:
        return Example(number, _text(value, "completion"), prompt=_text(value, "prompt"))
    if set(value) != {"messages"}:
        raise ValueError(
            f"its keys are {', '.join(sorted(map(repr, value)))[:120]}, "
            "not prompt and completion, nor messages"
        )
    turns = _turns(value["messages"])
    if turns[-1].role != "assistant":
        raise ValueError("the last message is not the assistant's")
    if len(turns) < 2:
        raise ValueError("nothing is asked before the assistant's message")
    return Example(number, turns[-1].content, turns=turns[:-1])


def _turns(value: object) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TURNS:
        raise ValueError(f"messages is not a list of 1 to {MAX_TURNS}")
    turns = []
    for item in value:
        if not isinstance(item, dict) or set(item) != {"role", "content"}:
            raise ValueError("a message is an object with role and content")
        if item["role"] not in ROLES:
            raise ValueError(f"the role {item['role']!r} is not one of {', '.join(ROLES)}")
        turns.append(Turn(item["role"], _text(item, "content")))
    return tuple(turns)


def _text(value: dict[str, object], key: str) -> str:
    text = value[key]
    if not isinstance(text, str) or not text:
        raise ValueError(f"{key} is not text, or empty")
    if not _is_unicode(text):
        raise ValueError(f"{key} holds half a character (a lone surrogate)")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
