"""A running deployment as its users see it: the stock OpenAI client, and the operator's files."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai

from kvrun.launch.processes import engine_url
from kvrun.launch.readiness import http_get
from kvrun.launch.stack import MODEL_NAME, Stack, StackOptions

WINDOW = 2048
STACKS: list[Stack] = []
"""Those that run now, for the report of a failure."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, what it says it reused, and all of it as it came over the wire."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    request_id: str
    raw: str


class User:
    """A tenant's session at an OpenAI-compatible address."""

    def __init__(
        self,
        url: str,
        key: str,
        tenant: str | None,
        *,
        session: str | None = None,
        model: str = MODEL_NAME,
    ) -> None:
        names = {"X-KV-Tenant": tenant, "X-KV-Session": session}
        self.model = model
        self.client = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            default_headers={name: value for name, value in names.items() if value is not None},
            max_retries=0,
            timeout=120,
        )

    def complete(self, prompt: str, max_tokens: int = 12) -> Answer:
        """One greedy completion of exactly so many tokens."""
        raw = self.client.completions.with_raw_response.create(
            model=self.model,
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        answer = raw.parse()
        return _answer(answer.choices[0].text, answer.usage, raw)

    def chat(self, *turns: str, max_tokens: int = 12) -> Answer:
        """One greedy answer to a conversation; the turns alternate, the user's first."""
        raw = self.client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=[
                {"role": "assistant" if number % 2 else "user", "content": turn}  # type: ignore[misc]
                for number, turn in enumerate(turns)
            ],
            max_tokens=max_tokens,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        answer = raw.parse()
        return _answer(answer.choices[0].message.content or "", answer.usage, raw)


def _answer(text: str, usage: object, raw: object) -> Answer:
    details = usage.prompt_tokens_details  # type: ignore[attr-defined]
    return Answer(
        text=text,
        prompt_tokens=usage.prompt_tokens,  # type: ignore[attr-defined]
        cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
        request_id=raw.headers["X-KV-Request-Id"],  # type: ignore[attr-defined]
        raw=raw.text,  # type: ignore[attr-defined]
    )


@contextmanager
def running(**options: object) -> Iterator[Stack]:
    """A whole deployment of the tiny model; everything ends with the block."""
    folder = short_folder()
    stack = Stack(
        folder / "s",
        StackOptions(
            model="tiny",
            context_window=WINDOW,
            memory_bytes=64 * _MIB,
            disk_bytes=128 * _MIB,
            **options,  # type: ignore[arg-type]
        ),
    )
    STACKS.append(stack)
    try:
        stack.start()
        yield stack
    finally:
        STACKS.remove(stack)
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


def short_folder() -> Path:
    """A private folder whose path leaves room for a Unix socket's name."""
    return Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))


def words(seed: int, count: int = 330) -> str:
    """So many seeded words, about 1000 tokens; another seed differs from the first word on."""
    source = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(source.choices(letters, k=5)) for _ in range(count))


def engine_metric(stack: Stack, name: str) -> float:
    """The sum of one of the engine's own metrics."""
    _, text = http_get(engine_url(stack.config), "/metrics", timeout_s=30)
    lines = (line for line in text.decode().splitlines() if line.startswith(name + "{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def eventually(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.1)


def files_with(folder: Path, text: str) -> list[Path]:
    """The files below ``folder`` that hold this text."""
    wanted = text.encode()
    found = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if wanted in path.read_bytes()]
