"""An engine played by hand: speaks the instance protocol as scheduler and worker, no vLLM."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kvrun.instance.connection import Connection, make_hello
from kvrun.instance.protocol import (
    AnyMessage,
    BlockAt,
    Finished,
    GroupLayout,
    Hello,
    Load,
    Loaded,
    Match,
    Matched,
    Release,
    Released,
    Role,
    Started,
    Store,
)
from kvrun.instance.staging import SlotTable, StagingRegion

BLOCK_BYTES = 4096
TOKENS_PER_BLOCK = 16
LAYOUT = (GroupLayout(TOKENS_PER_BLOCK, 1, "4:layers"),)


def hello(role: Role, token: str, **fields: object) -> Hello:
    """A hello of a small engine with one KV cache group; ``fields`` replace parts of it."""
    given: dict[str, object] = {}
    if role in (Role.SCHEDULER, Role.WORKER):
        given = {"fingerprint": b"f" * 32, "groups": LAYOUT, "context_window": 1024}
    if role is Role.WORKER:
        given["block_bytes"] = (BLOCK_BYTES,)
    return make_hello(role, token, "by hand", **{**given, **fields})


def wait_for(
    connection: Connection, kind: type[AnyMessage], timeout_s: float = 20.0
) -> AnyMessage | None:
    """The next message of a kind, or None when none came in time; others before it are dropped."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        messages = connection.poll(0.05)
        for number, message in enumerate(messages):
            if isinstance(message, kind):
                # Those after it are for the next call.
                connection._pending.extend(messages[number + 1 :])
                return message
        if connection.closed:
            break
    return None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a load brought: plaintext by block hash, and the hashes that failed."""

    plain: dict[bytes, bytes]
    failed: list[bytes]


class HandEngine:
    """Scheduler and worker of one engine, each call answered before it returns."""

    def __init__(self, socket: Path, token: str, **fields: object) -> None:
        self.scheduler = Connection.connect(
            socket, hello(Role.SCHEDULER, token, **fields), timeout_s=5
        )
        self.worker = Connection.connect(socket, hello(Role.WORKER, token, **fields), timeout_s=5)
        assert self.worker.staging_fd is not None
        welcome = self.worker.welcome
        self.region = StagingRegion(self.worker.staging_fd, welcome.slot_bytes, welcome.slots)
        os.close(self.worker.staging_fd)
        self.slots = SlotTable(welcome.slots)
        self._numbers = 0

    def match(
        self,
        claim: str,
        salt: str,
        hashes: Sequence[bytes] = (),
        *,
        handle: int = 0,
        prompt_tokens: int = 0,
        traceparent: str = "",
    ) -> Matched:
        """Ask for a request."""
        self._numbers += 1
        size = len(hashes[0]) if hashes else 0
        asked = Match(
            self._numbers,
            claim,
            salt,
            size,
            b"".join(hashes),
            prompt_tokens,
            handle=handle,
            traceparent=traceparent,
        )
        assert self.scheduler.send(asked)
        answer = wait_for(self.scheduler, Matched)
        assert isinstance(answer, Matched)
        assert answer.request == self._numbers
        return answer

    def start(self, handle: int, engine_tokens: int, loaded_tokens: int) -> None:
        """Say what a request reused when it was scheduled."""
        assert self.scheduler.send(Started(handle, engine_tokens, loaded_tokens))

    def finish(self, handle: int) -> None:
        """End a request."""
        assert self.scheduler.send(Finished(handle))

    def store(self, handle: int, blocks: Sequence[tuple[bytes, bytes]], *, first: int = 0) -> None:
        """Hand over (hash, plaintext) blocks and wait until their slots are free again."""
        placed = []
        for index, (block_hash, plain) in enumerate(blocks):
            taken = self.slots.take()
            assert taken is not None
            slot, generation = taken
            self.region.slot(slot, len(plain))[:] = plain
            placed.append(BlockAt(block_hash, 0, first + index, slot, generation))
        assert self.worker.send(Store(handle, tuple(placed)))
        self._freed({block.slot for block in placed})

    def load(self, handle: int, hashes: Sequence[bytes], *, first: int = 0) -> Opened:
        """Have blocks opened, copy them out and release their slots."""
        placed = []
        for index, block_hash in enumerate(hashes):
            taken = self.slots.take()
            assert taken is not None
            placed.append(BlockAt(block_hash, 0, first + index, *taken))
        by_slot = {block.slot: block for block in placed}
        assert self.worker.send(Load(1, handle, tuple(placed)))
        opened = Opened({}, [])
        left = set(by_slot)
        while left:
            answer = wait_for(self.worker, Loaded)
            assert isinstance(answer, Loaded)
            for slot in answer.slots:
                opened.plain[by_slot[slot].block_hash] = bytes(self.region.slot(slot, BLOCK_BYTES))
            opened.failed.extend(by_slot[slot].block_hash for slot in answer.failed)
            left -= {*answer.slots, *answer.failed}
        self.release(sorted(by_slot))
        return opened

    def release(self, slots: Sequence[int]) -> None:
        """Give slots back and wait until they are zero."""
        generations = tuple(self.slots.generation(slot) for slot in slots)
        assert self.worker.send(Release(tuple(slots), generations))
        self._freed(set(slots))

    def close(self) -> None:
        """Leave, as an engine that ends does."""
        self.scheduler.close()
        self.worker.close()

    def _freed(self, slots: set[int]) -> None:
        while slots:
            answer = wait_for(self.worker, Released)
            assert isinstance(answer, Released)
            for slot, generation in zip(answer.slots, answer.generations, strict=True):
                assert not any(self.region.slot(slot, self.region.slot_bytes))
                assert self.slots.give_back(slot, generation)
            slots -= set(answer.slots)

    def __enter__(self) -> HandEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
