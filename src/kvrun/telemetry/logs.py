"""What every process writes to its log: one line a message, as text or as JSON.

Prompts, ids and keys have no place in a log. Messages are written without them; what is here keeps
out what slips in by accident: of an exception only the kind and the place are written unless it is
one of kvrun's own or the system's, and text that has the form of a key or a token is replaced.
"""

import logging
import os
import re
import sys
import time
from enum import StrEnum
from typing import Any, TextIO

import msgspec

from kvrun.errors import KvrunError

MAX_MESSAGE_CHARS = 8192
REMOVED = "[removed]"


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


def configure_logging(
    process: str, *, level: str, log_format: LogFormat, stream: TextIO | None = None
) -> None:
    """Have everything that this process logs go to ``stream`` (standard error), a line a message.

    ``process`` names the process in JSON lines. Handlers that were there before are replaced.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process) if log_format is LogFormat.JSON else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Else a message that cannot be formatted is printed with all its arguments.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    root.setLevel(level.upper())


class TextLines(logging.Formatter):
    """``2026-01-31 12:00:00,123 WARNING kvrun.gateway: message``; what follows is indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it where an exception came from."""
        head = f"{self.formatTime(record)} {record.levelname} {record.name}: {_message(record)}"
        return "\n    ".join([head, *_exception(record)])


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``process``,
    ``pid``, ``message`` and, for an exception, ``error`` with its kind and place."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": os.getpid(),
            "message": _message(record),
        }
        error = _exception(record)
        if error:
            line["error"] = error
        return msgspec.json.encode(line).decode()


def _message(record: logging.LogRecord) -> str:
    return _clean(record.getMessage())


def _clean(text: str) -> str:
    """One line without secrets: who could end a line could write one of their own."""
    shown = _SECRET.sub(REMOVED, text)[:MAX_MESSAGE_CHARS]
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def _exception(record: logging.LogRecord) -> list[str]:
    """Kind and place of an exception and of what led to it, the last first."""
    error = record.exc_info[1] if record.exc_info else None
    lines: list[str] = []
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        lines.append(_kind(error))
        trace = error.__traceback__
        frames = []
        while trace is not None:
            code = trace.tb_frame.f_code
            frames.append(f"at {code.co_filename}:{trace.tb_lineno} in {code.co_name}")
            trace = trace.tb_next
        lines += frames[-_MAX_FRAMES:]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def _kind(error: BaseException) -> str:
    """The exception's name; its text only where kvrun or the system wrote that."""
    name = type(error).__name__
    if isinstance(error, KvrunError):
        return f"{name}: {_clean(error.message)}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {_clean(error.strerror)}"
    return name


_MAX_CAUSES = 5
_MAX_FRAMES = 30
_SECRET = re.compile(
    r"kvk_[\w-]{16,}"  # an API key
    r"|kvc1\.[\w.-]{16,}"  # a claim
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"  # a JSON web token
    r"|(?i:bearer)\s+\S+"
)
