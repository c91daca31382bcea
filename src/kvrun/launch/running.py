"""What a running ``kvrun up`` notes of itself in its run folder."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from kvrun.config import DataLayout
from kvrun.durable import replace_private_file


class RunningState(msgspec.Struct, frozen=True):
    """Which processes run. ``pid`` is the one of ``kvrun up``, ``process_start`` when that started
    (``known_engines.process_start``); the note is there once all are ready."""

    pid: int
    processes: dict[str, int]
    gateway_url: str
    engine_url: str
    model: str
    started_at: float
    process_start: str = ""


def note_running(layout: DataLayout, state: RunningState) -> None:
    """Write the note, readable by this user only."""
    replace_private_file(layout.state, msgspec.json.encode(state))


def read_running(layout: DataLayout) -> RunningState | None:
    """The note of the ``kvrun up`` that runs, or None."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(layout.state.read_bytes(), type=RunningState)
    return None
