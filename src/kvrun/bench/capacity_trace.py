"""A trace of real requests as blocks of prefixes, and the hit ratio of a cache that keeps all.

One JSON object a line: ``timestamp`` (ms), ``input_length`` (tokens) and ``hash_ids``, one number
for each block of ``BLOCK_TOKENS`` tokens; equal numbers mean the same tokens after the same prefix.
That is the format of the traces of Mooncake (FAST'25). They hold no ids of users or conversations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from kvrun.errors import KvrunError

BLOCK_TOKENS = 512
_MAX_LINE = 1 << 20


class TraceError(KvrunError):
    """The file is no trace."""

    exit_code = 2


class Scope(StrEnum):
    """Who may reuse whose blocks."""

    SHARED = "shared"
    TENANT = "tenant"
    SESSION = "session"


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    hash_ids: list[int]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when (seconds), of which conversation, and the blocks of its prompt."""

    at_s: float
    session: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[Request]:
    """The requests of a trace in order, each with its conversation. Raises TraceError."""
    decoder = msgspec.json.Decoder(_Line)
    lines: list[_Line] = []
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if len(text) > _MAX_LINE:
                    raise TraceError(f"line {number} of {path} is longer than {_MAX_LINE} bytes")
                try:
                    lines.append(decoder.decode(text))
                except msgspec.MsgspecError as error:
                    raise TraceError(
                        f"line {number} of {path} is no request of a trace: {error}",
                        hint="a line holds timestamp, input_length and hash_ids",
                    ) from error
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    return infer_sessions((line.timestamp / 1000, line.hash_ids) for line in lines)


def infer_sessions(prompts: Iterable[tuple[float, Sequence[int]]]) -> list[Request]:
    """Tells conversations apart by their prefix.

    A prompt whose second block is known goes on with the conversation that brought it; the first
    block alone is often a system prompt that all share.
    """
    sessions: dict[tuple[int, ...], int] = {}
    requests: list[Request] = []
    for at_s, blocks in prompts:
        root = tuple(blocks[:2])
        # A prompt of one block is a conversation of its own: nothing tells whose it is.
        key = root if len(root) == 2 else (*root, -1 - len(requests))
        session = sessions.setdefault(key, len(sessions))
        requests.append(Request(at_s, session, tuple(blocks)))
    return requests


def owner_of(request: Request, scope: Scope, tenants: int) -> str:
    """In whose name a request's blocks are kept."""
    if scope is Scope.SHARED:
        return "all"
    if scope is Scope.TENANT:
        # Conversations are dealt to tenants as cards are: no tenant is known from the trace.
        return f"t{request.session % tenants}"
    return f"s{request.session}"


def ideal_hit_ratio(requests: Sequence[Request], scope: Scope, tenants: int) -> float:
    """The share of blocks that a cache without bounds would have had."""
    known: set[tuple[str, int]] = set()
    hits = total = 0
    for request in requests:
        owner = owner_of(request, scope, tenants)
        total += len(request.blocks)
        prefix = True
        for block in request.blocks:
            prefix = prefix and (owner, block) in known
            hits += prefix
        known.update((owner, block) for block in request.blocks)
    return hits / total if total else 0.0


def count_blocks(requests: Sequence[Request], scope: Scope, tenants: int) -> tuple[int, int]:
    """How many blocks the requests leave, and how many of them are asked for more than once."""
    uses = Counter(
        (owner_of(request, scope, tenants), block)
        for request in requests
        for block in request.blocks
    )
    return len(uses), sum(1 for count in uses.values() if count > 1)
