"""Spans of requests, recorded or not, and the ``traceparent`` that joins those of processes.

Where nothing is recorded a client's ``traceparent`` (W3C Trace Context) is passed on all the same;
``kvrun.telemetry.tracing`` decides which it is. No attribute holds a prompt, an answer, a tenant, a
session or a key: what a span may say is listed in :data:`ATTRIBUTES`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, Self

TRACEPARENT = b"traceparent"

AttributeValue = str | bool | int
ATTRIBUTES = frozenset(
    {
        "kvrun.request_id",
        "kvrun.api",
        "kvrun.governed",
        "kvrun.stream",
        "kvrun.blocks",
        "kvrun.verdict",
        "http.response.status_code",
        "error.type",
    }
)
"""Every attribute that a span may carry."""


class SpanKind(StrEnum):
    """Whose side of a call a span is."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class Trace(Protocol):
    """One span, or the place of one where nothing is recorded."""

    @property
    def traceparent(self) -> str:
        """What a process that is asked on behalf of this span should be told; may be empty."""

    def step(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> AbstractContextManager[Trace]:
        """A span below this one for the length of a block."""

    def note(self, **attributes: AttributeValue) -> None:
        """Say something of the span; :func:`attribute_name` lists the keywords."""


class Tracing(Protocol):
    """Makes spans."""

    def span(
        self, name: str, traceparent: str, kind: SpanKind = SpanKind.SERVER
    ) -> AbstractContextManager[Trace]:
        """A span for the length of a block, below the one that ``traceparent`` names, if any.

        An exception that leaves the block marks the span as failed, by its kind alone.
        """

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""


class PassedOn:
    """The place of a span where nothing is recorded: it tells on what it was told."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was begun."""

    def step(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Self:
        """See Trace."""
        return self

    def note(self, **attributes: AttributeValue) -> None:
        """See Trace."""


NOTHING = PassedOn("")
"""The place of a span of which nobody told us."""


class NoTracing:
    """Records nothing."""

    def span(
        self, name: str, traceparent: str, kind: SpanKind = SpanKind.SERVER
    ) -> AbstractContextManager[Trace]:
        """See Tracing."""
        return PassedOn(traceparent) if traceparent else NOTHING

    def close(self) -> None:
        """See Tracing."""


def read_traceparent(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """A request's ``traceparent``, or "" where it has none, several, or one that is malformed."""
    found = ""
    for name, value in headers:
        if name == TRACEPARENT or (len(name) == 11 and name.lower() == TRACEPARENT):
            if found:
                return ""
            found = value.decode("latin-1").strip(" \t")
    return found if valid_traceparent(found) else ""


def valid_traceparent(text: str) -> bool:
    """Whether ``text`` is a traceparent of version 00 that names a trace and a span."""
    return _TRACEPARENT.fullmatch(text) is not None


def attribute_name(keyword: str) -> str:
    """The attribute that a keyword of ``note`` stands for: ``request_id`` for
    ``kvrun.request_id``, ``status_code`` and ``error_type``. ValueError where there is none."""
    name = _KEYWORDS.get(keyword)
    if name is None:
        raise ValueError(f"{keyword} is no attribute that a span may carry")
    return name


_KEYWORDS = {
    name.removeprefix("kvrun.").removeprefix("http.response.").replace(".", "_"): name
    for name in ATTRIBUTES
}
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
