"""What the collector remembers of each log: the size and root that a later log must extend.

One small file a log, replaced atomically, with a checksum. It is what shows a rollback or a fork,
so a damaged one is an error and never a fresh start. Beside it lies the tail: the verified records
of the segment that is still open.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.audit.segment import TreePoint
from kvrun.config.layout import folder_name
from kvrun.durable import replace_private_file, sync_folder
from kvrun.errors import KvrunError

_FILE = "remembered"
_TAIL = "tail.jsonl"
_MAX_NAME = 200


class MemoryDamagedError(KvrunError):
    """A file of the collector's memory is not what was written."""

    exit_code = 3


class RememberedLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One log as far as it was verified. Times in seconds since 1970.

    ``key`` is the verifier key that was pinned at first sight and ``note`` the latest checkpoint
    with every cosignature. ``seen`` is the place up to which records were verified, ``stored`` the
    one up to which Storage has them, ``first`` the one where what Storage has begins. The tail
    holds the ``tail_bytes`` between ``stored`` and ``seen``. ``generation`` grows when an operator
    starts over after an alert. ``alert`` names the alert that stops collection. ``witnesses`` says
    which size each witness saw last; ``admissions`` counts the records seen that say that a request
    was admitted or denied.
    """

    v: int = 1
    log: str
    generation: int = 1
    source: str
    workspace: str
    deployment: str
    key: str
    note: str
    first: TreePoint
    seen: TreePoint
    stored: TreePoint
    tail_bytes: int = 0
    first_seen_at: float
    collected_at: float
    alert: str = ""
    retired: str = ""
    admissions: int = 0
    witnesses: dict[str, int] = {}

    @property
    def root(self) -> bytes:
        """The root hash over the first ``seen.size`` records."""
        return self.seen.merkle_frontier().root()

    @property
    def verifier_key(self) -> VerifierKey:
        """The pinned key."""
        return parse_verifier_key(self.key)


class Memory:
    """Every remembered log, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def tallies(self) -> Path:
        """The folder for tallies of stored segments; see :mod:`kvrun.control.tallies`."""
        return self._folder.with_name("tallies")

    def all(self) -> list[RememberedLog]:
        """All of them, by log id. Raises MemoryDamagedError."""
        paths = sorted(self._folder.glob(f"*/{_FILE}")) if self._folder.is_dir() else []
        return sorted((_load(path) for path in paths), key=lambda found: found.log)

    def find(self, log: str) -> RememberedLog | None:
        """What is remembered of a log. Raises MemoryDamagedError."""
        path = self._of(log) / _FILE
        return _load(path) if path.exists() else None

    def of_source(self, source: str) -> RememberedLog | None:
        """The log that an instance last showed."""
        found = [item for item in self.all() if item.source == source]
        return max(found, key=lambda item: item.collected_at, default=None)

    def save(self, remembered: RememberedLog) -> None:
        """Remember durably: afterwards it is either all of this or all of what was before."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._of(remembered.log)
        folder.mkdir(mode=0o700, exist_ok=True)
        content = msgspec.json.encode(remembered, order="sorted") + b"\n"
        replace_private_file(folder / _FILE, content + sha256(content).hexdigest().encode() + b"\n")

    def put_aside(self, log: str) -> None:
        """Forget a log's history for collection, and keep the memory of it."""
        found = self.find(log)
        if found is not None:
            closed = self._folder / "closed"
            closed.mkdir(mode=0o700, exist_ok=True)
            self._of(log).rename(closed / f"{log_folder(log)}@{found.generation}")
            sync_folder(closed)
            sync_folder(self._folder)

    def next_generation(self, log: str) -> int:
        """The number of a log's next history; 1 for the first."""
        return 1 + sum(1 for _ in (self._folder / "closed").glob(f"{log_folder(log)}@*"))

    def tail(self, log: str) -> Path:
        """Where the verified records of the open segment are kept."""
        return self._of(log) / _TAIL

    def _of(self, log: str) -> Path:
        return self._folder / log_folder(log)


def log_folder(log: str, generation: int = 1) -> str:
    """A log's folder name: its id, escaped; a digest of it where that is too long."""
    name = folder_name(log)
    if len(name) > _MAX_NAME:
        name = sha256(log.encode()).hexdigest()
    return name if generation == 1 else f"{name}@{generation}"


def _load(path: Path) -> RememberedLog:
    try:
        data = path.read_bytes()
        content, checksum = data[:-65], data[-65:]
        if checksum != sha256(content).hexdigest().encode() + b"\n":
            raise ValueError("its checksum does not match")
        found = msgspec.json.decode(content, type=RememberedLog)
        for point in (found.first, found.seen, found.stored):
            point.merkle_frontier()
        _ = found.verifier_key
    except (OSError, ValueError, msgspec.MsgspecError, KvrunError) as error:
        raise MemoryDamagedError(
            f"what the collector remembers in {path} is damaged: {error}",
            hint="Put back a newer copy. Without it a rollback of that log would not show.",
        ) from None
    return found
