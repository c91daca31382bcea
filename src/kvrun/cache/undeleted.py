"""Sessions whose packs could not be deleted yet, remembered over restarts."""

import logging
import threading
from pathlib import Path

import msgspec

from kvrun.durable import replace_private_file

_log = logging.getLogger(__name__)
_Refs = tuple[str, str]


class UndeletedSessions:
    """(tenant_ref, session_ref) pairs in ``file``; without one in memory only. Thread-safe.

    The pairs are pseudonyms that nobody can link once their keys are gone.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._refs = _read(file)

    def __len__(self) -> int:
        return len(self._refs)

    def all(self) -> list[_Refs]:
        """Every pair."""
        with self._lock:
            return sorted(self._refs)

    def note(self, tenant_ref: str, session_ref: str, *, left: bool) -> None:
        """Says whether something of a session is left."""
        key = (tenant_ref, session_ref)
        with self._lock:
            if left == (key in self._refs):
                return
            self._refs ^= {key}
            if self._file is None:
                return
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_private_file(self._file, msgspec.json.encode(sorted(self._refs)))
            except OSError:
                _log.exception("%s cannot be written", self._file)


def _read(file: Path | None) -> set[_Refs]:
    try:
        return set(msgspec.json.decode(file.read_bytes(), type=list[_Refs])) if file else set()
    except FileNotFoundError:
        return set()
    except (OSError, msgspec.MsgspecError):
        _log.exception("%s cannot be read: packs that it names stay, unreadable", file)
        return set()
