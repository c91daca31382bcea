"""The daemon's end of an adapter's connection, played by a test."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvrun.instance.protocol import AnyMessage, Message, Welcome

SLOT = 4096


class Line:
    """A daemon's side of the connection, as far as the worker sees it."""

    def __init__(self, *, slots: int = 8, announced: int | None = None) -> None:
        self.welcome = Welcome(1, "i", "w", "d", False, {}, 0, 1000, 1000, SLOT, announced or slots)
        self.staging_fd: int | None = os.memfd_create("test")
        os.ftruncate(self.staging_fd, SLOT * slots)
        self.closed = self.ended = False
        self.sent: list[Message] = []
        self.answers: list[AnyMessage] = []

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return not self.closed

    def poll(self, wait_s: float = 0.0) -> Sequence[AnyMessage]:
        answers, self.answers = self.answers, []
        return answers

    def hung_up(self) -> bool:
        return self.closed or self.ended

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.sent if isinstance(message, kind)]


class Search:
    def __init__(self) -> None:
        self.next: Line | None = None

    def poll(self) -> Line | None:
        found, self.next = self.next, None
        return found

    def close(self) -> None:
        pass
