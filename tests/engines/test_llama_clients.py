"""What clients do to llama.cpp's slots: those that read slowly, and those that leave.

llama.cpp and the daemon are simulated; the front is asked as an HTTP server asks it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from kvrun.engines.admission import Admission, State
from kvrun.engines.llama_cpp.backend import Timings
from kvrun.engines.llama_cpp.front import Front
from kvrun.engines.llama_cpp.metrics import SlotMetrics
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.slots import Slots

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
END = b"the end"
_TIMINGS = b'"timings":{"cache_n":0,"predicted_n":4}'
_STREAM = [
    b'data: {"prompt_progress":{"cache":0}}\n\n',
    *[b'data: {"text":"begun"}\n\n'] * 3,
    b'data: {"text":"the end",' + _TIMINGS + b"}\n\n",
    b"data: [DONE]\n\n",
]
_WHOLE = b'{"choices":[{"text":"the end"}],' + _TIMINGS + b"}"
_GUARD_S = 30


class Sent:
    """An answer as aiohttp gives it, streamed or whole; it is its own content."""

    status = 200

    def __init__(self, stream: bool) -> None:
        self.headers = {"content-type": "text/event-stream" if stream else "application/json"}
        self.content = self

    async def read(self) -> bytes:
        return _WHOLE

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in _STREAM:
            await asyncio.sleep(0)
            yield chunk


@dataclass
class Llama:
    """A server of one slot. A save goes on when it is cut off, as llama.cpp's does."""

    scratch: Scratch
    saving: asyncio.Event = field(default_factory=asyncio.Event)
    may_save: asyncio.Event = field(default_factory=asyncio.Event)
    written: asyncio.Task[None] | None = None

    async def compute(self, slot: int, tokens: Sequence[int]) -> Timings:
        return Timings(0, len(tokens))

    async def save(self, slot: int, name: str) -> tuple[int, int]:
        self.written = asyncio.create_task(self._write())
        await asyncio.shield(self.written)
        raise AssertionError("nobody waits for this save")

    async def erase(self, slot: int) -> None:
        if self.written is not None:
            await self.written

    async def call(self, path: str, body: Mapping[str, object]) -> tuple[int, bytes]:
        return 200, _WHOLE

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncIterator[Sent]:
        yield Sent(body.get("stream") is True)

    async def _write(self) -> None:
        self.saving.set()
        await self.may_save.wait()
        os.pwrite(self.scratch.fd, b"what the slot holds", 0)


class Daemon:
    """A link that admits nobody and keeps nothing."""

    stateless = True

    async def admit(self, *_: object) -> Admission:
        return Admission(1, State.DENIED)

    async def settled(self, number: int) -> None:
        pass

    async def released(self) -> None:
        pass

    def started(self, request_id: str, loaded_tokens: int) -> None:
        pass

    def finish(self, request_id: str) -> None:
        pass


class Client:
    """One connection. It takes what contains ``stops_at`` only when it ``reads`` on."""

    def __init__(self, stops_at: bytes = b"") -> None:
        self.stops_at = stops_at
        self.got = b""
        self.stopped, self.reads, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ask(self, front: Front, path: str, **body: object) -> None:
        asked = [{"type": "http.request", "body": msgspec.json.encode(body)}]

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        await front({"type": "http", "method": "POST", "path": path}, receive, self._take)

    async def _take(self, message: Any) -> None:
        data = message.get("body", b"")
        if self.stops_at and self.stops_at in data:
            self.stopped.set()
            await self.reads.wait()
        self.got += data


@dataclass
class World:
    """A front over one slot."""

    llama: Llama
    front: Front


@pytest.fixture
def world() -> Iterator[World]:
    scratch, zeros = Scratch(), Scratch()
    llama: Any = Llama(scratch)
    daemon: Any = Daemon()
    slots = Slots(llama, [scratch], zeros, lambda *_: None)
    yield World(llama, Front(llama, daemon, slots, SlotMetrics(), name="m", window=512))
    scratch.close()
    zeros.close()


@pytest.mark.parametrize(
    ("path", "stream", "stops_at"),
    [
        (COMPLETIONS, True, b"begun"),
        (COMPLETIONS, True, END),
        (COMPLETIONS, False, END),
        (RESPONSES, True, b"begun"),
        (RESPONSES, False, END),
    ],
)
async def test_a_client_that_does_not_read_holds_nobody_up(
    world: World, path: str, stream: bool, stops_at: bytes
) -> None:
    asked: dict[str, object] = {"prompt": [1, 2, 3]} if path == COMPLETIONS else {"input": "a"}
    slow, other = Client(stops_at), Client()
    async with asyncio.timeout(_GUARD_S):
        task = asyncio.create_task(slow.ask(world.front, path, stream=stream, **asked))
        await slow.stopped.wait()
        await other.ask(world.front, COMPLETIONS, prompt=[4, 5, 6], stream=True)
        assert END in other.got
        assert END not in slow.got, "it still does not read"
        slow.reads.set()
        await task
        await world.front.close()
    assert END in slow.got
    assert not stream or slow.got.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "asked"), [(COMPLETIONS, {"prompt": [1, 2, 3]}), (RESPONSES, {"input": "a"})]
)
async def test_of_an_answer_that_is_not_read_so_much_waits_and_then_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, object]
) -> None:
    monkeypatch.setattr("kvrun.engines.llama_cpp.reply._UNREAD_PARTS", 1)
    monkeypatch.setattr("kvrun.engines.llama_cpp.reply._READS_WITHIN_S", 0.01)
    slow, other = Client(b"begun"), Client()
    async with asyncio.timeout(_GUARD_S):
        await slow.ask(world.front, path, stream=True, **asked)
        await other.ask(world.front, COMPLETIONS, prompt=[4, 5, 6])
        await world.front.close()
    assert slow.stopped.is_set()
    assert b"begun" not in slow.got
    assert END in other.got


async def test_what_a_save_writes_after_its_client_left_is_wiped(world: World) -> None:
    client = Client()
    async with asyncio.timeout(_GUARD_S):
        task = asyncio.create_task(client.ask(world.front, COMPLETIONS, prompt=list(range(100))))
        await world.llama.saving.wait()
        client.left.set()
        await task
        closing = asyncio.create_task(world.front.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done(), "its slot is not given back before llama.cpp has done with it"
        world.llama.may_save.set()
        await closing
    assert world.llama.written is not None
    assert world.llama.written.done()
    assert world.llama.scratch.size_bytes == 0
