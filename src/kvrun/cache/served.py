"""Which models were served here since when, so that blocks of others can be told by their age.

Names and indexes of blocks tell nothing without a session's keys, and nobody opens every session.
But a block was made by the model that was served when it was written, and files and objects have a
time.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from kvrun.durable import replace_private_file

_MOST = 1024
_log = logging.getLogger(__name__)
Span = tuple[float, float]


class ServedModel(msgspec.Struct, frozen=True):
    """From ``since`` on, seconds since 1970, a model of this fingerprint was served.

    ``model`` is a digest of the fingerprint.
    """

    model: str
    since: float


class ServedModels:
    """The history in ``file``; without one in memory only. Thread-safe."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._history = _read(file)

    def note(self, fingerprint: bytes, now: float) -> None:
        """An engine with this fingerprint begins to serve."""
        model = hashlib.sha256(fingerprint).hexdigest()[:32]
        with self._lock:
            if self._history and self._history[-1].model == model:
                return
            self._history = [*self._history, ServedModel(model, now)][-_MOST:]
            if self._file is None:
                return
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_private_file(self._file, msgspec.json.encode(self._history))
            except OSError:
                _log.exception("%s cannot be written", self._file)

    def foreign(self, now: float, after_s: float) -> tuple[Span, ...]:
        """As :func:`foreign_spans` of what was noted."""
        with self._lock:
            return foreign_spans(self._history, now, after_s)


def foreign_spans(history: Sequence[ServedModel], now: float, after_s: float) -> tuple[Span, ...]:
    """The times, from and until, at which only other models than the last one were served.

    None while the last one is served for less than ``after_s`` seconds: it may be taken back, and
    what was stored before is of use then. What was written before the first entry is of no known
    model, and in none of them.
    """
    if not history or now - history[-1].since < after_s:
        return ()
    current = history[-1].model
    return tuple(
        (before.since, after.since)
        for before, after in pairwise(history)
        if before.model != current
    )


def within(spans: Sequence[Span], margin_s: float = 0.0) -> Callable[[float], bool]:
    """Whether a time is in one of the spans, ``margin_s`` from its begin and its end."""
    return lambda at: any(since + margin_s <= at < until - margin_s for since, until in spans)


def until(last: float) -> Callable[[float], bool]:
    """Whether a time is ``last`` or earlier."""
    return lambda at: at <= last


def _read(file: Path | None) -> list[ServedModel]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[ServedModel]) if file else []
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError):
        _log.exception(
            "%s cannot be read: blocks of earlier models stay until they are evicted", file
        )
        return []
