"""The configurations of deployments, read again only when their files have changed."""

from __future__ import annotations

import threading
from pathlib import Path

from kvrun.config import KvrunConfig, load_config

_MAX_KEPT = 4096
_State = tuple[int, int, int, int]


class ReadConfigs:
    """Files as they were read last; a file that was written since is read anew. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[_State, KvrunConfig]] = {}

    def read(self, file: Path) -> KvrunConfig:
        """The configuration of a file alone, without variables. Raises ConfigError."""
        state = _state(file)
        with self._lock:
            known = self._kept.get(file)
        if known is not None and known[0] == state:
            return known[1]
        config = load_config(file, {})
        if state is not None and state == _state(file):
            with self._lock:
                if len(self._kept) >= _MAX_KEPT:
                    self._kept.clear()
                self._kept[file] = (state, config)
        return config


def _state(file: Path) -> _State | None:
    """What changes when a file is written or replaced; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
