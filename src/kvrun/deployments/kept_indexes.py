"""Who has keys in stopped deployments, so that these are not opened anew for each question.

Opening a deployment's keys takes a hundred times longer than looking whether its files changed.
What is kept, in memory alone and until the files change, is the index of its keys: pseudonyms,
times, and tags under a key that was made for it. No id and no key is in it, so it names nobody.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.config.roots import FileAddress
from kvrun.errors import KvrunError
from kvrun.keys.listing import KeyIndex
from kvrun.keys.root_place import file_root_folder

State = tuple[tuple[str, int, int, int, int], ...]
_MAX_ENTRIES = 300_000
_SETTLED_NS = 2 * 10**9
"""A file that was written more recently may be written again within the same tick of its times."""


class KeptIndexes:
    """Thread-safe. ``now_ns`` is nanoseconds since 1970."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[State, KeyIndex]] = {}

    def find(self, config: KvrunConfig) -> KeyIndex | None:
        """The index of a deployment whose daemon does not run, if its files are as they were."""
        with self._lock:
            known = self._kept.get(config.layout.keys)
        if known is None or known[0] == key_files(config):
            return known[1] if known is not None else None
        with self._lock:
            if self._kept.get(config.layout.keys) is known:
                del self._kept[config.layout.keys]
        return None

    def learn(self, config: KvrunConfig, before: State, index: KeyIndex) -> None:
        """Keep an index, unless the files changed since ``before``, or just now."""
        settled = self._now_ns() - _SETTLED_NS
        if not before or any(max(changed[3:]) > settled for changed in before):
            return
        if before != key_files(config) or len(index) > _MAX_ENTRIES:
            return
        with self._lock:
            self._kept.pop(config.layout.keys, None)
            if sum(len(kept) for _, kept in self._kept.values()) + len(index) > _MAX_ENTRIES:
                self._kept.clear()
            self._kept[config.layout.keys] = (before, index)


def key_files(config: KvrunConfig) -> State:
    """What changes when keys are made, used anew or destroyed; nothing where that is elsewhere."""
    address = config.keys.root_address
    if config.keys.mode == "service" or not isinstance(address, FileAddress):
        return ()
    found = []
    try:
        root = file_root_folder(address, config.instance.data_dir)
        for folder in (config.layout.keys, root):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name == "lock":
                        # Whoever opens the folder writes into it.
                        continue
                    at = entry.stat(follow_symlinks=False)
                    state = (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
                    found.append((entry.path, *state))
    except (KvrunError, OSError):
        return ()
    return tuple(sorted(found))
