"""What a key service knows of a daemon that has to let go of keys. Pure data."""

from enum import StrEnum

import msgspec


class Pages(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Pages of engine memory, over all engines of a daemon; ``notes`` say what they cannot do."""

    evicted: int = 0
    scrubbed: int = 0
    held: int = 0
    notes: list[str] = []


class DaemonReport(StrEnum):
    """What a daemon said of an erasure."""

    TOLD = "told"
    """Nothing yet."""
    LET_GO = "let_go"
    """It has none of the keys any more."""
    ENDED = "ended"
    """Its process ended, and its memory with it."""
    UNTOLD = "untold"
    """It is connected, and nobody told it: this service was started since."""
    ABSENT = "absent"
    """It is not connected, and this service knows nothing of it."""


class DaemonState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is known of one daemon; ``pages`` once it spoke of them."""

    name: str
    report: DaemonReport
    pages: Pages | None = None
