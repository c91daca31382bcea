"""Where shipped records go: a file, a stream, or a receiver that speaks OTLP over HTTP."""

import http.client
import os
import ssl
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import msgspec

from kvrun.audit.errors import AuditError
from kvrun.audit.export import CSV_COLUMNS, ExportFormat, csv_line, export_line
from kvrun.audit.otlp import LogsResponse, encode_logs
from kvrun.audit.record import Record
from kvrun.audit.ship import DeliveryError, ShipError, Sink

_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 64 * 1024
_RETRYABLE = (429, 502, 503, 504)
_LONGEST_RETRY_AFTER_S = 300.0
_TAIL_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 16 * 1024


class StreamSink:
    """Writes lines to a stream such as standard output."""

    name = "stdout"

    def __init__(self, stream: BinaryIO, form: ExportFormat) -> None:
        self._stream = stream
        self._form = form

    def deliver(self, records: Sequence[Record]) -> int:
        """Write and flush."""
        try:
            self._stream.write(_lines(records, self._form))
            self._stream.flush()
        except OSError as error:
            raise ShipError(f"standard output cannot be written: {error.strerror}") from None
        return 0


class FileSink:
    """Appends lines to a file and syncs it. A line that a crash tore is cut off first."""

    def __init__(self, path: Path, form: ExportFormat) -> None:
        self.name = f"file:{path}"
        self._form = form
        self._header = form is ExportFormat.CSV
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
            size = os.fstat(self._descriptor).st_size
            self._size = size - self._torn(size)
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise ShipError(f"{path} cannot be written: {error.strerror}") from None

    def deliver(self, records: Sequence[Record]) -> int:
        """Append and sync; what a failure left behind is cut off."""
        data = _lines(records, self._form)
        if self._header and not self._size:
            data = csv_line(CSV_COLUMNS).encode() + data
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise DeliveryError(f"{self.name} cannot be written: {error.strerror}") from None
        self._size += len(data)
        return 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _torn(self, size: int) -> int:
        """How many bytes after the last newline."""
        tail = os.pread(self._descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn > _LONGEST_LINE_BYTES:
            raise ShipError(f"{self.name} does not end with a line: it is not a shipped log")
        return torn


class OtlpSink:
    """Posts batches to an OTLP/HTTP receiver in JSON, compressed, on one kept connection."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ShipError(
                f"{url!r} is not the address of an OTLP receiver",
                hint="Write otlp:http://host:4318 or otlp:https://host/v1/logs, and credentials "
                "into OTEL_EXPORTER_OTLP_HEADERS.",
            )
        self.name = f"otlp:{parts.scheme}://{parts.netloc}"
        path = parts.path if parts.path not in ("", "/") else "/v1/logs"
        self._target = f"{path}?{parts.query}" if parts.query else path
        self._headers = {
            **(headers or {}),
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
        }
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_s, context=ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=timeout_s
            )

    def deliver(self, records: Sequence[Record]) -> int:
        """Post one request; redirects are not followed."""
        try:
            status, after, answer = self._post(_gzip(encode_logs(records)))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DeliveryError(f"{self.name} does not answer: {error or type(error)}") from None
        if status in _RETRYABLE:
            raise DeliveryError(f"{self.name} answered {status}", after_s=_seconds(after))
        if not 200 <= status < 300:
            said = answer[:200].decode("ascii", "replace").strip()
            raise ShipError(f"{self.name} refused the records: status {status} {said}")
        try:
            return msgspec.json.decode(answer or b"{}", type=LogsResponse).rejected
        except (msgspec.MsgspecError, ValueError):
            # It has the records; only what it says of them is not OTLP.
            return 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _post(self, body: bytes) -> tuple[int, str, bytes]:
        self._connection.request("POST", self._target, body, self._headers)
        response = self._connection.getresponse()
        answer = response.read(_MAX_ANSWER_BYTES)
        if not response.isclosed():
            # A longer answer is none that anybody needs.
            self._connection.close()
        return response.status, response.getheader("Retry-After", ""), answer


def open_sink(
    target: str, form: ExportFormat, *, stdout: BinaryIO, environment: Mapping[str, str]
) -> Sink:
    """The sink that ``target`` names: ``stdout``, ``file:PATH`` or ``otlp:URL``.

    OTLP headers are read from ``OTEL_EXPORTER_OTLP_LOGS_HEADERS`` or
    ``OTEL_EXPORTER_OTLP_HEADERS``. Raises ShipError.
    """
    kind, _, place = target.partition(":")
    if target == "stdout":
        return StreamSink(stdout, form)
    if kind == "file" and place:
        return FileSink(Path(place), form)
    if kind == "otlp" and place:
        if form is not ExportFormat.JSONL:
            raise ShipError("OTLP carries the records as they are: leave --format out")
        given = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get(
            "OTEL_EXPORTER_OTLP_HEADERS", ""
        )
        return OtlpSink(place, parse_headers(given))
    raise ShipError(
        f"records cannot be shipped to {target!r}", hint="Use stdout, file:PATH or otlp:URL."
    )


def parse_headers(text: str) -> dict[str, str]:
    """The headers of ``name=value,name=value``, values percent-encoded. Raises AuditError."""
    headers = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = item.partition("=")
        name, value = name.strip(), unquote(value.strip())
        fits = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not separator or not fits or not value.isprintable():
            raise AuditError(
                "OTEL_EXPORTER_OTLP_HEADERS is not a list of name=value",
                hint="Separate them by commas, and percent-encode commas in values.",
            )
        headers[name] = value
    return headers


def _lines(records: Sequence[Record], form: ExportFormat) -> bytes:
    return "".join(export_line(record, form) for record in records).encode()


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(level=1, wbits=31)
    return packer.compress(data) + packer.flush()


def _seconds(retry_after: str) -> float:
    """``Retry-After`` in seconds, bounded; dates count as none."""
    return min(float(retry_after), _LONGEST_RETRY_AFTER_S) if retry_after.isdigit() else 0.0
