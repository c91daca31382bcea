"""Read the request counters of engine and gateway around a collection, and compare them.

The engine's are vLLM's own metrics; the gateway's need an API key of the scope ``metrics`` where it
asks for keys. A side that does not answer is left out: counting never holds a collection up.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterable

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as MetricSample

from kvrun.audit.segment import replace_file
from kvrun.config import KvrunConfig
from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectReport
from kvrun.control.plane import ControlPlane
from kvrun.control.reconcile import Counts, Finding, Sample, reconcile
from kvrun.control.remembered import log_folder

_TIMEOUT_S = 5.0
_MAX_BYTES = 8 * 2**20


class _Noted(msgspec.Struct, frozen=True):
    """What an interval began with."""

    sample: Sample
    admissions: int


class Counting:
    """Made before a log is collected, which is when the interval ends."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._end = read_sample(plane.config)

    def compare(self, report: CollectReport) -> list[Finding]:
        """The interval's findings, each an alert that does not stop collection. Begins the next."""
        folder = self._plane.folder / "counts"
        path = folder / f"{log_folder(report.log)}.json"
        findings = []
        if path.exists():
            try:
                begin = msgspec.json.decode(path.read_bytes(), type=_Noted)
                admissions = report.admissions - begin.admissions
                findings = reconcile(report.log, begin.sample, self._end, admissions)
            except msgspec.MsgspecError:
                findings = []
        folder.mkdir(mode=0o700, exist_ok=True)
        noted = _Noted(read_sample(self._plane.config), report.admissions)
        replace_file(path, msgspec.json.encode(noted))
        remembered = self._plane.memory.find(report.log)
        for finding in findings:
            if remembered is not None:
                files = {"counts.json": msgspec.json.format(msgspec.json.encode(finding))}
                self._plane.alarm.warn(AlertKind.OMISSION, remembered, finding.message, files)
        return findings


def read_sample(config: KvrunConfig) -> Sample:
    """What both sides count now."""
    gateway = config.gateway
    headers = {}
    if config.audit.metrics_key_file is not None:
        try:
            key = config.audit.metrics_key_file.read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {key}"
        except (OSError, ValueError):
            return Sample()
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(gateway.host, gateway.host)  # noqa: S104
    scheme = "https" if gateway.tls_cert else "http"
    seen = _metrics(f"{scheme}://{host}:{gateway.port}", headers)
    engine = _metrics(gateway.engine_url or "", {})
    return Sample(
        engine=None if engine is None else engine_counts(engine),
        gateway=None if seen is None else gateway_counts(seen),
    )


def engine_counts(metrics: Iterable[MetricSample]) -> Counts | None:
    """vLLM's counters, aborted requests included; None where they are not there."""
    found = list(metrics)
    finished = [item.value for item in found if item.name == "vllm:request_success_total"]
    waiting = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    under_way = [item.value for item in found if item.name in waiting]
    if not finished or not under_way:
        return None
    return Counts(finished=int(sum(finished)), in_flight=int(sum(under_way)))


def gateway_counts(metrics: Iterable[MetricSample]) -> Counts | None:
    """The gateway's counters: generations that were answered; None where they are not there."""
    found = list(metrics)
    under_way = [item.value for item in found if item.name == "kvrun_gateway_requests_in_flight"]
    if not under_way:
        return None
    finished = sum(
        item.value
        for item in found
        if item.name == "kvrun_gateway_requests_total"
        and item.labels.get("api") not in ("other", "embeddings")
        and item.labels.get("status") == "200"
    )
    # Embeddings carry no claim: the engine finishes them, the log does not know them.
    uncached = sum(
        item.value
        for item in found
        if item.name == "kvrun_gateway_uncached_requests_total"
        or (
            item.name == "kvrun_gateway_requests_total"
            and item.labels.get("api") == "embeddings"
        )
    )
    return Counts(finished=int(finished), in_flight=int(sum(under_way)), uncached=int(uncached))


def _metrics(url: str, headers: dict[str, str]) -> list[MetricSample] | None:
    connection = _connect(url)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        text = answer.read(_MAX_BYTES).decode()
        if answer.status != 200:
            return None
        return [item for family in text_string_to_metric_families(text) for item in family.samples]
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _connect(url: str) -> http.client.HTTPConnection:
    scheme, _, rest = url.partition(":")
    if scheme == "unix":
        return _UnixConnection(rest)
    authority = rest.strip("/") or "localhost"
    if scheme == "https":
        # Our own gateway on this machine: whether it answers is asked, not who it is.
        context = ssl._create_unverified_context()  # noqa: S323
        return http.client.HTTPSConnection(authority, timeout=_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(authority, timeout=_TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)
