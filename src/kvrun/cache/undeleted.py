"""Sessions whose packs could not be deleted yet, all or some, remembered over restarts."""

import logging
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from kvrun.durable import replace_private_file

_log = logging.getLogger(__name__)
_Refs = tuple[str, str]


class _Left(msgspec.Struct, array_like=True, frozen=True):
    """One session in the file. Without ``packs`` whatever there is of it."""

    tenant_ref: str
    session_ref: str
    packs: list[str] = []


class UndeletedSessions:
    """(tenant_ref, session_ref) pairs in ``file``; without one in memory only. Thread-safe.

    Of a session that lives only the packs that are named go. The pairs are pseudonyms that nobody
    can link once their keys are gone.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._packs = _read(file)

    def __len__(self) -> int:
        return len(self._packs)

    def all(self) -> list[tuple[_Refs, frozenset[str]]]:
        """Every pair, with the packs that are left; none are named where all of it is to go."""
        with self._lock:
            return sorted(self._packs.items())

    def note(self, tenant_ref: str, session_ref: str, *, left: bool) -> None:
        """Says whether something of a session is left that ended."""
        with self._lock:
            self._set((tenant_ref, session_ref), frozenset() if left else None)

    def note_packs(
        self, tenant_ref: str, session_ref: str, packs: Collection[str], *, left: bool
    ) -> None:
        """Says of some packs of a session that lives whether they are left."""
        key = (tenant_ref, session_ref)
        with self._lock:
            before = self._packs.get(key)
            if before is not None and not before:
                return  # all of it is to go
            now = (
                (before or frozenset()).union(packs) if left else (before or frozenset()) - {*packs}
            )
            self._set(key, now or None)

    def _set(self, key: _Refs, packs: frozenset[str] | None) -> None:
        if self._packs.get(key) == packs:
            return
        if packs is None:
            del self._packs[key]
        else:
            self._packs[key] = packs
        if self._file is None:
            return
        entries = [_Left(*refs, sorted(named)) for refs, named in sorted(self._packs.items())]
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(self._file, msgspec.json.encode(entries))
        except OSError:
            _log.exception("%s cannot be written", self._file)


def _read(file: Path | None) -> dict[_Refs, frozenset[str]]:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=list[_Left]) if file else []
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError):
        _log.exception("%s cannot be read: packs that it names stay, unreadable", file)
        return {}
    return {(item.tenant_ref, item.session_ref): frozenset(item.packs) for item in found}
