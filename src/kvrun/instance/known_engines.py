"""Engines that said hello, kept in a file: one that runs holds plaintext, connected or not.

The file (0600, in the data folder, beside the erasure jobs) outlives the daemon. A process is
known by its id and by when it started, so that another one of the same id is not taken for it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError

_MAX_BYTES = 256 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


class EnginesFileError(KvrunError):
    """The file of engines cannot be read, so nobody knows which of them hold plaintext."""


class KnownEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process of an engine's scheduler; ``started`` is its :func:`process_start`."""

    pid: int
    started: str
    software: str
    scrubs: bool


class OwedPages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Page owners whose keys expired, and the processes that have not zeroed their pages; with
    ``everything`` all pages."""

    owners: list[bytes]
    pids: list[int]
    everything: bool = False


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    engines: list[KnownEngine]
    owed: list[OwedPages] = []


class KnownEngines:
    """The engines in one file. Thread-safe; one process at a time may write."""

    def __init__(self, path: Path) -> None:
        """Raises EnginesFileError when there is a file that cannot be read."""
        self._path = path
        self._lock = threading.Lock()
        content = _read(path)
        self._engines = {engine.pid: engine for engine in content.engines}
        self._owed = content.owed

    def add(self, pid: int, software: str, *, scrubs: bool) -> None:
        """An engine said hello. Durable where the disk allows; without it, known until a restart.

        A process of another pid namespace has no id here, and is not written down.
        """
        started = process_start(pid)
        if not started:
            return
        engine = KnownEngine(pid, started, software[:200], scrubs)
        with self._lock:
            if self._engines.get(pid) == engine:
                return
            self._engines = {known.pid: known for known in self._engines.values() if _runs(known)}
            self._engines[pid] = engine
            self._write()

    def running(self) -> list[KnownEngine]:
        """Those whose process still runs."""
        with self._lock:
            return [engine for engine in self._engines.values() if _runs(engine)]

    def owed(self) -> list[OwedPages]:
        """What those that still run owe."""
        running = {engine.pid for engine in self.running()}
        left = [replace(owed, pids=sorted(running & {*owed.pids})) for owed in self._owed]
        return [owed for owed in left if owed.pids]

    def keep_owed(self, owed: list[OwedPages]) -> None:
        """Write down what engines owe, in place of what they owed."""
        with self._lock:
            if owed != self._owed:
                self._owed = owed
                self._write()

    def _write(self) -> None:
        body = msgspec.json.encode(_Content(1, list(self._engines.values()), self._owed))
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(self._path, body)
        except OSError as error:
            # Refused, the engine could not be asked to zero anything.
            _log.error("%s cannot be written: %s", self._path, error.strerror)


def process_start(pid: int) -> str:
    """When a process started, as text that no other process of this id has; "" if it is gone.

    The machine's boot and field 22 of /proc/PID/stat (proc_pid_stat(5)).
    """
    if pid <= 0:
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name in parentheses may hold spaces and parentheses; 19 fields later is the start.
        return f"{_BOOT_ID.read_text().strip()} {int(stat.rpartition(b')')[2].split()[19])}"
    except (OSError, ValueError, IndexError):
        return ""


def _runs(engine: KnownEngine) -> bool:
    return process_start(engine.pid) == engine.started


def _read(path: Path) -> _Content:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return _Content(1, [])
    except OSError as error:
        raise EnginesFileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        content = msgspec.json.decode(data, type=_Content)
        if len(data) > _MAX_BYTES or content.version != 1:
            raise msgspec.ValidationError("it is too long or of another version")
    except msgspec.MsgspecError as error:
        raise EnginesFileError(
            f"{path} is damaged: {error}",
            hint="It names engines that may hold plaintext. Remove it once none of them runs.",
        ) from None
    return content
