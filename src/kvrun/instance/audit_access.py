"""What a collector may ask a running daemon about its audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrun.audit.errors import AuditUnavailableError
from kvrun.audit.reading import LogFolder, SegmentInfo
from kvrun.audit.writer import AuditLog
from kvrun.instance.admin import UnknownOperationError


class LogState(msgspec.Struct, frozen=True):
    """A log's latest signed checkpoint and its verifier key, as the log states them."""

    checkpoint: bytes
    verifier_key: str


class AuditAccess:
    """The operations on the log of one daemon. They read what the log's files hold."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._folder = LogFolder(log.folder)

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the daemon's admin service."""
        return {
            "audit_state": self._state,
            "audit_segments": self._segments,
            "audit_read": self._read,
            "audit_release": self._release,
        }

    def _state(self, _: Mapping[str, str]) -> LogState:
        try:
            note = self._log.sign_checkpoint()
        except AuditUnavailableError:
            # A full disk is no reason to keep the collector, who frees it, from what is there.
            note = self._log.checkpoint
        return LogState(note, self._folder.verifier_key())

    def _segments(self, arguments: Mapping[str, str]) -> list[SegmentInfo]:
        return self._folder.segments(_number(arguments, "from_seq"))

    def _read(self, arguments: Mapping[str, str]) -> bytes:
        first_seq, offset = _number(arguments, "first_seq"), _number(arguments, "offset")
        return self._folder.read(first_seq, offset, _number(arguments, "size_bytes"))

    def _release(self, arguments: Mapping[str, str]) -> dict[str, int]:
        return {"freed_bytes": self._log.release(_number(arguments, "through_seq"))}


def _number(arguments: Mapping[str, str], name: str) -> int:
    text = arguments.get(name, "")
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise UnknownOperationError(f"the operation needs a number {name!r}, not {text[:40]!r}")
    return int(text)
