"""What an installation keeps of its policy: the active revision, how the last look at the
repository went, what the registry says of tenants, and where instance and Storage were seen to be.
One file each, replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from kvrun.durable import replace_private_file
from kvrun.filelock import FileTakenError, hold_file
from kvrun.policy.errors import PolicyBusyError, PolicyError, PolicyUnreadableError
from kvrun.policy.matching import Tenant
from kvrun.policy.observed import Observed

MAX_HISTORY = 50
MAX_TENANTS = 1_000_000
_MAX_BYTES = 256 << 20
_T = TypeVar("_T")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a revision comes from. Times in seconds since 1970."""

    revision: str
    repository: str = ""
    ref: str = ""
    author: str = ""
    subject: str = ""
    committed_at: float = 0.0
    signed_by: str = ""


class ActivePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The last good revision, with its files by path."""

    origin: Origin
    activated_at: float
    files: dict[str, str]


class SyncOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one look at the repository ended; ``outcome`` is unchanged, activated, rejected or
    unreachable, ``problems`` say what was wrong, where."""

    at: float
    outcome: str
    revision: str = ""
    problems: tuple[str, ...] = ()
    note: str = ""


class SyncStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``confirmed_at`` is when the repository was last seen at the active revision."""

    confirmed_at: float = 0.0
    last: SyncOutcome | None = None
    history: tuple[SyncOutcome, ...] = ()


class SeenPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Regions that were seen, ``by`` whom; empty where nobody said one."""

    by: str
    instance: str = ""
    storage: str = ""


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the registry says of one tenant."""

    tenant_ref: str
    tenant_class: str = ""
    region: str = ""
    labels: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """The files in ``residency`` below a data folder; each reader gives nothing where none is."""

    folder: Path

    @property
    def active_file(self) -> Path:
        """The active revision."""
        return self.folder / "active.json"

    @property
    def status_file(self) -> Path:
        """How the last look went."""
        return self.folder / "status.json"

    @property
    def tenants_file(self) -> Path:
        """What is known of tenants."""
        return self.folder / "tenants.json"

    @property
    def seen_file(self) -> Path:
        """Where instance and Storage were seen to be."""
        return self.folder / "seen.json"

    @property
    def repository(self) -> Path:
        """The clone."""
        return self.folder / "repository.git"

    @contextmanager
    def alone(self, wait_s: float) -> Iterator[None]:
        """Be the one process that looks at the repository.

        Raises PolicyBusyError where another one does for longer than ``wait_s``, PolicyError.
        """
        lock = self.folder / "sync.lock"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = hold_file(lock, str(os.getpid()), wait_s=wait_s)
        except FileTakenError as error:
            raise PolicyBusyError(
                f"process {error.holder or '?'} looks at the policy's repository",
                hint="Try again when it is done; `kvrun policy status` shows how it went.",
            ) from None
        except OSError as error:
            raise PolicyError(f"{lock} cannot be written: {error.strerror}") from None
        try:
            yield
        finally:
            os.close(held)

    def active(self) -> ActivePolicy | None:
        """The last good revision. Raises PolicyError for a file that cannot be read."""
        return _read(self.active_file, ActivePolicy)

    def status(self) -> SyncStatus:
        """How the last look went. Raises PolicyError."""
        return _read(self.status_file, SyncStatus) or SyncStatus()

    def tenants(self) -> dict[str, Tenant]:
        """Attributes by reference. Raises PolicyError."""
        entries = _read(self.tenants_file, list[TenantEntry]) or []
        return {entry.tenant_ref: tenant_of(entry) for entry in entries}

    @property
    def look_file(self) -> Path:
        """Its time says when somebody last asked to look at the repository."""
        return self.folder / "look"

    def ask_for_look(self) -> None:
        """Have the repository looked at soon, by whoever follows it. Raises PolicyError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.look_file.touch(mode=0o600)
        except OSError as error:
            raise PolicyError(f"{self.look_file} cannot be written: {error.strerror}") from None

    def look_asked_at(self) -> int:
        """When that was, for comparing alone; 0 for never."""
        try:
            return self.look_file.stat().st_mtime_ns
        except OSError:
            return 0

    def activate(self, active: ActivePolicy) -> None:
        """Replace the active revision."""
        self._write(self.active_file, active)

    def note(self, outcome: SyncOutcome, *, confirmed: bool) -> SyncStatus:
        """Put on record how a look went; the same outcome again takes no new line of history."""
        before = self.status()
        history = before.history
        same = before.last is not None and _same(before.last, outcome)
        if outcome.outcome != "unchanged" and not same:
            history = (outcome, *history)[:MAX_HISTORY]
        status = SyncStatus(
            confirmed_at=outcome.at if confirmed else before.confirmed_at,
            last=outcome,
            history=history,
        )
        self._write(self.status_file, status)
        return status

    def seen(self, by: str) -> Observed:
        """The regions that were seen last, as far as the same were asked (``by``)."""
        try:
            found = _read(self.seen_file, SeenPlaces)
        except PolicyError:
            return Observed()  # they are asked again soon
        return Observed(found.instance, found.storage) if found and found.by == by else Observed()

    def put_seen(self, by: str, seen: Observed) -> None:
        """Remember which regions were seen. Raises PolicyError."""
        self._write(self.seen_file, SeenPlaces(by=by, instance=seen.instance, storage=seen.storage))

    def put_tenants(self, entries: Sequence[TenantEntry]) -> None:
        """Replace what is known of tenants."""
        if len(entries) > MAX_TENANTS:
            raise PolicyError(f"{len(entries)} tenants; {MAX_TENANTS} are allowed")
        self._write(self.tenants_file, sorted(entries, key=lambda entry: entry.tenant_ref))

    def _write(self, path: Path, value: object) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(path, msgspec.json.encode(value))
        except OSError as error:
            raise PolicyError(f"{path} cannot be written: {error.strerror}") from None


def tenant_of(entry: TenantEntry) -> Tenant:
    """The attributes of an entry."""
    return Tenant(entry.tenant_class, entry.region, tuple(sorted(entry.labels.items())))


def _same(one: SyncOutcome, other: SyncOutcome) -> bool:
    return (one.outcome, one.revision, one.problems) == (
        other.outcome,
        other.revision,
        other.problems,
    )


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PolicyUnreadableError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise PolicyError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise PolicyError(f"{path} is damaged: {error}") from None
