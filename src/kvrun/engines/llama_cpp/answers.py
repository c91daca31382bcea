"""llama.cpp's answers on their way to the gateway: reuse told as it was, timings kept back. Pure.

kvrun computes part of a prompt before it asks for the answer, so llama.cpp's own count of cached
tokens says nothing about what was restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvrun.engines.llama_cpp.backend import Timings

_TOLD = (b'"timings"', b'"usage"', b'"prompt_progress"')


class Event(msgspec.Struct, frozen=True):
    """One event: its bytes, empty where a client does not get it, and what it told.

    ``cache_n`` is the number of tokens that the slot held when the request began; ``timings``
    come with the last event.
    """

    data: bytes
    cache_n: int | None = None
    timings: Timings | None = None
    generated: bool = False


class _Progress(msgspec.Struct, frozen=True):
    cache: int = 0


def whole_answer(body: bytes, reused: int) -> bytes:
    """A whole answer with its true reuse. Raises msgspec.DecodeError."""
    answer = msgspec.json.decode(body, type=dict[str, object])
    _correct(answer, reused)
    return msgspec.json.encode(answer)


class EventReader:
    """Cuts a stream into events; ``reused`` may be set until the last event is read."""

    def __init__(self) -> None:
        self.reused = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Every event that ``chunk`` completes. Raises msgspec.DecodeError."""
        self._rest += chunk
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            yield self._read(event + b"\n\n")

    def _read(self, event: bytes) -> Event:
        if not event.startswith(b"data: {"):
            # The end mark, a comment that keeps the connection alive, or an error.
            return Event(event, generated=not event.startswith(b":"))
        if not any(mark in event for mark in _TOLD):
            return Event(event, generated=True)
        told = msgspec.json.decode(event[6:], type=dict[str, object])
        progress = told.get("prompt_progress")
        if progress is not None:
            return Event(b"", cache_n=msgspec.convert(progress, _Progress).cache)
        timings = told.get("timings")
        _correct(told, self.reused)
        return Event(
            b"data: " + msgspec.json.encode(told) + b"\n\n",
            timings=None if timings is None else msgspec.convert(timings, Timings),
            generated=True,
        )


def _correct(answer: dict[str, object], reused: int) -> None:
    answer.pop("timings", None)
    answer.pop("__verbose", None)
    usage = answer.get("usage")
    if isinstance(usage, dict):
        usage["prompt_tokens_details"] = {"cached_tokens": reused}
