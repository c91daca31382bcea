"""What a witness remembers of each log: one SQLite file that cannot go back. And what it refused.

A witness whose memory is lost must not go on under its old key: it would cosign a fork. So the key
lies beside the memory, and one without the other is refused.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.note import COSIGNATURE_V1, VerifierKey, check_key_name
from kvrun.control.witness_errors import WitnessError
from kvrun.errors import KvrunError
from kvrun.keys.folder import FolderLock, private_folder
from kvrun.keys.signing import KeyPurpose, SigningRing

MAX_REFUSALS = 16
_FILE = "witness.db"
_SCHEMA = """
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = EXTRA;
CREATE TABLE IF NOT EXISTS identity (key TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS logs (
  origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL,
  time INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS a_log_never_goes_back BEFORE UPDATE ON logs
  WHEN NEW.origin <> OLD.origin OR NEW.size < OLD.size
    OR (NEW.size = OLD.size AND NEW.root <> OLD.root)
  BEGIN SELECT RAISE(ABORT, 'a log never goes back'); END;
CREATE TRIGGER IF NOT EXISTS a_log_is_never_forgotten BEFORE DELETE ON logs
  BEGIN SELECT RAISE(ABORT, 'a log is never forgotten'); END;
CREATE TABLE IF NOT EXISTS refusals (
  origin TEXT NOT NULL, time INTEGER NOT NULL, status INTEGER NOT NULL, note BLOB NOT NULL);
"""


class WitnessStateError(WitnessError):
    """A witness's folder cannot be used, or what it remembered is lost."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Remembered:
    """The last checkpoint cosigned of a log. ``time``: the last time stated, in seconds."""

    size: int
    root: bytes
    note: bytes
    time: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A note that the log's key signed and the witness did not cosign, with the HTTP status."""

    time: int
    status: int
    note: bytes


@dataclass(frozen=True, slots=True)
class LogView:
    """What a witness knows of one log; ``size`` and ``time`` are 0 when nothing was cosigned."""

    origin: str
    size: int
    time: int
    refusals: tuple[Refusal, ...]


def read_key(folder: Path) -> str | None:
    """The verifier key of the witness in ``folder``, or None. Works while it serves."""
    with _reading(folder) as database:
        row = database.execute("SELECT key FROM identity").fetchone() if database else None
    return row[0] if row else None


def read_logs(folder: Path) -> list[LogView]:
    """What the witness in ``folder`` knows of its logs. Works while it serves."""
    with _reading(folder) as database:
        if database is None:
            return []
        query = "SELECT origin FROM logs UNION SELECT origin FROM refusals ORDER BY origin"
        found = []
        for (origin,) in database.execute(query).fetchall():
            known = _row(database, origin)
            refusals = tuple(_refusals(database, origin))
            size, time = (known.size, known.time) if known else (0, 0)
            found.append(LogView(origin, size, time, refusals))
        return found


class WitnessState:
    """A witness's key and memory in ``folder`` (0700). One process at a time; thread-safe."""

    def __init__(self, folder: Path, name: str | None, *, now: Callable[[], float]) -> None:
        """Open, or make on first use; then ``name`` (a key name) is needed.

        Raises WitnessStateError when another process holds the folder, the memory is lost, or the
        witness was made under another name.
        """
        private_folder(folder, purpose="witness")
        self._lock = threading.Lock()
        self._folder_lock = FolderLock(folder, purpose="witness")
        self._folder = folder
        try:
            self._database = self._connect()
            self._ring = SigningRing(folder / "keys", now=now)
            self.private_key, self.key = self._identity(name)
        except sqlite3.Error as error:
            self._folder_lock.close()
            raise WitnessStateError(f"{folder / _FILE} cannot be used: {error}") from None
        except BaseException:
            self._folder_lock.close()
            raise

    def close(self) -> None:
        """Let the folder go."""
        with self._lock:
            self._database.close()
            self._folder_lock.close()

    def remembered(self, origin: str) -> Remembered | None:
        """What was cosigned last of a log, or None."""
        with self._lock:
            return _row(self._database, origin)

    def remember(self, origin: str, old: Remembered | None, new: Remembered) -> bool:
        """Replace ``old`` by ``new``, durably; False if something else is remembered by now."""
        with self._lock, self._database:
            if _row(self._database, origin) != old:
                return False
            self._database.execute(
                "INSERT INTO logs VALUES (?, ?, ?, ?, ?) ON CONFLICT (origin) DO UPDATE SET "
                "size = excluded.size, root = excluded.root, note = excluded.note, "
                "time = excluded.time",
                (origin, new.size, new.root, new.note, new.time),
            )
        return True

    def refuse(self, origin: str, refusal: Refusal) -> None:
        """Keep what was refused, as evidence: the first ``MAX_REFUSALS`` notes a log and status.

        Anyone can have a note refused with 422; that must not crowd out those with 409.
        """
        with self._lock, self._database:
            same = (
                item for item in _refusals(self._database, origin) if item.status == refusal.status
            )
            known = [item.note for item in same]
            if refusal.note not in known and len(known) < MAX_REFUSALS:
                row = (origin, refusal.time, refusal.status, refusal.note)
                self._database.execute("INSERT INTO refusals VALUES (?, ?, ?, ?)", row)

    def refusals(self, origin: str) -> list[Refusal]:
        """What was refused of a log, oldest first."""
        with self._lock:
            return _refusals(self._database, origin)

    def extent(self) -> tuple[int, int]:
        """How many logs were cosigned, and the latest time stated (0 before the first).

        Raises WitnessStateError.
        """
        try:
            with self._lock:
                query = "SELECT COUNT(*), COALESCE(MAX(time), 0) FROM logs"
                count, last = self._database.execute(query).fetchone()
        except sqlite3.Error as error:
            raise WitnessStateError(f"{self._folder / _FILE} cannot be read: {error}") from None
        return count, last

    def parts(self) -> dict[str, str]:
        """Whether a checkpoint could be cosigned now, by part: ``ok``, or what is wrong.

        For strangers too: no path is named. Nothing that is written for it stays.
        """
        return {"memory": self._memory_trouble() or "ok", "key": self._key_trouble() or "ok"}

    def _memory_trouble(self) -> str | None:
        try:
            with self._lock:
                try:
                    self._database.execute("BEGIN IMMEDIATE")
                    # A page goes into the journal, which a full or read-only disk refuses.
                    self._database.execute("INSERT INTO refusals VALUES ('', 0, 0, x'')")
                finally:
                    self._database.rollback()
        except sqlite3.Error as error:
            return f"cannot be written: {error}"
        return None

    def _key_trouble(self) -> str | None:
        """It is in memory too, but without its file this witness ends with its process."""
        try:
            kept = self._ring.all_keys(KeyPurpose.WITNESS)
        except (KvrunError, OSError):
            return "its file cannot be read"
        public = (key.private_key.public_key().public_bytes_raw() for key in kept)
        return None if self.key.public_key in public else "its file is missing"

    def _connect(self) -> sqlite3.Connection:
        path = self._folder / _FILE
        if not path.exists() and (self._folder / "keys").exists():
            raise WitnessStateError(
                f"{path} is missing, but the key is here: what this witness cosigned is forgotten",
                hint="Put the file back, or give this witness up and make a new one in another "
                "folder. Under its old key it would cosign a fork.",
            )
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, check_same_thread=False, timeout=5)
        database.executescript(_SCHEMA)
        return database

    def _identity(self, name: str | None) -> tuple[Ed25519PrivateKey, VerifierKey]:
        row = self._database.execute("SELECT key FROM identity").fetchone()
        known = self._ring.all_keys(KeyPurpose.WITNESS)
        if row is None and name is None:
            raise WitnessStateError(
                f"there is no witness in {self._folder} yet", hint="--name NAME makes one."
            )
        named = check_key_name(name if name is not None else row[0].split("+")[0])
        if row is None:
            private_key = self._ring.load_or_create(KeyPurpose.WITNESS).private_key
        elif known:
            private_key = known[0].private_key
        else:
            raise WitnessStateError(f"the key of the witness in {self._folder} is missing")
        public = private_key.public_key().public_bytes_raw()
        key = VerifierKey(named, COSIGNATURE_V1, public)
        if row is None:
            with self._database:
                self._database.execute("INSERT INTO identity VALUES (?)", (key.text(),))
        elif row[0] != key.text():
            raise WitnessStateError(
                f"the witness in {self._folder} is {row[0]}, not {key.text()}",
                hint="A witness keeps its name and its key for life.",
            )
        return private_key, key


@contextmanager
def _reading(folder: Path) -> Iterator[sqlite3.Connection | None]:
    path = folder / _FILE
    if not path.exists():
        yield None
        return
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
            yield database
    except sqlite3.Error as error:
        raise WitnessStateError(f"{path} cannot be read: {error}") from None


def _row(database: sqlite3.Connection, origin: str) -> Remembered | None:
    query = "SELECT size, root, note, time FROM logs WHERE origin = ?"
    row = database.execute(query, (origin,)).fetchone()
    return Remembered(*row) if row else None


def _refusals(database: sqlite3.Connection, origin: str) -> list[Refusal]:
    query = "SELECT time, status, note FROM refusals WHERE origin = ? ORDER BY rowid"
    return [Refusal(*row) for row in database.execute(query, (origin,)).fetchall()]
