"""How an instance's log is read: through its daemon, or from its folder while it is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kvrun.audit.errors import AuditError, AuditLogBusyError
from kvrun.audit.reading import MAX_READ_BYTES, LogFolder, SegmentInfo, release_segments
from kvrun.audit.segment import lock_folder
from kvrun.errors import KvrunError
from kvrun.instance.audit_access import LogState
from kvrun.instance.client import AdminClient

__all__ = [
    "MAX_READ_BYTES",
    "DaemonSource",
    "FolderSource",
    "LogSource",
    "LogState",
    "SegmentInfo",
    "SourceUnavailableError",
]


_T = TypeVar("_T")


class SourceUnavailableError(KvrunError):
    """An instance's log cannot be read now; nothing is said about the log."""

    exit_code = 3
    status = 503


class LogSource(Protocol):
    """One instance's log. What it says is the instance's claim. Calls block.

    Every method raises SourceUnavailableError when there is no answer.
    """

    @property
    def name(self) -> str:
        """Which instance this is, the same each time."""

    def state(self) -> LogState:
        """Its latest checkpoint (empty where there is none) and its verifier key."""

    def segments(self, from_seq: int) -> list[SegmentInfo]:
        """Its segments in order from the one with record ``from_seq`` on; some, if there are many.

        The last of all is the open one.
        """

    def read(self, first_seq: int, offset: int, size_bytes: int) -> bytes:
        """Bytes of the segment that starts with record ``first_seq``; fewer at its end."""

    def release(self, through_seq: int) -> int:
        """Let it delete closed segments up to that record; bytes freed."""


class FolderSource:
    """The folder of a log that no daemon writes now."""

    def __init__(self, folder: Path) -> None:
        self._log = LogFolder(folder)

    @property
    def name(self) -> str:
        """The folder's path."""
        return os.fspath(self._log.folder)

    def state(self) -> LogState:
        """See LogSource."""
        return self._try(lambda: LogState(self._log.checkpoint(), self._log.verifier_key()))

    def segments(self, from_seq: int) -> list[SegmentInfo]:
        """See LogSource."""
        if not self._log.folder.is_dir():
            return []
        return self._try(lambda: self._log.segments(from_seq))

    def read(self, first_seq: int, offset: int, size_bytes: int) -> bytes:
        """See LogSource."""
        return self._try(lambda: self._log.read(first_seq, offset, size_bytes))

    def release(self, through_seq: int) -> int:
        """See LogSource. A folder that somebody writes meanwhile is left alone."""
        try:
            lock = lock_folder(self._log.folder)
        except AuditLogBusyError:
            return 0
        except OSError as error:
            raise SourceUnavailableError(f"{self.name}: {error.strerror}") from None
        try:
            return release_segments(self._log.folder, through_seq)
        except OSError as error:
            raise SourceUnavailableError(f"{self.name}: {error.strerror}") from None
        finally:
            os.close(lock)

    def _try(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (AuditError, OSError) as error:
            reason = error.message if isinstance(error, AuditError) else str(error)
            raise SourceUnavailableError(f"{self.name} cannot be read: {reason}") from None


class DaemonSource:
    """A running daemon, asked over its socket with the admin token of its launch."""

    def __init__(self, folder: Path, socket: Path, token_file: Path) -> None:
        self._folder, self._socket, self._token_file = folder, socket, token_file
        self._client: AdminClient | None = None

    @property
    def name(self) -> str:
        """The path of the log's folder: the same instance when it is stopped."""
        return os.fspath(self._folder)

    def state(self) -> LogState:
        """See LogSource. The daemon signs for everything that is durable."""
        return self._ask("audit_state", LogState)

    def segments(self, from_seq: int) -> list[SegmentInfo]:
        """See LogSource."""
        return self._ask("audit_segments", list[SegmentInfo], from_seq=from_seq)

    def read(self, first_seq: int, offset: int, size_bytes: int) -> bytes:
        """See LogSource."""
        wanted = min(size_bytes, MAX_READ_BYTES)
        return self._ask(
            "audit_read", bytes, first_seq=first_seq, offset=offset, size_bytes=wanted
        )[:wanted]

    def release(self, through_seq: int) -> int:
        """See LogSource."""
        return self._ask("audit_release", dict[str, int], through_seq=through_seq)["freed_bytes"]

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, operation: str, kind: type[_T], **numbers: int) -> _T:
        arguments = {name: str(number) for name, number in numbers.items()}
        try:
            if self._client is None:
                token = self._token_file.read_text(encoding="ascii").strip()
                self._client = AdminClient(self._socket, token)
            return msgspec.json.decode(self._client.call(operation, arguments), type=kind)
        except (KvrunError, OSError, ValueError, msgspec.MsgspecError) as error:
            self.close()
            reason = error.message if isinstance(error, KvrunError) else str(error)
            raise SourceUnavailableError(
                f"the daemon at {self._socket} did not answer {operation}: {reason}"
            ) from None
