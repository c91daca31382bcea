"""What a witness says of itself: whether it can cosign, and what it did.

No log is named: a witness has no login, so whoever reaches its address may read this.
"""

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kvrun.control.witness_errors import WitnessError
from kvrun.control.witness_server import Cosigned, Refused
from kvrun.control.witness_state import WitnessState
from kvrun.telemetry.endpoint import Probes, Readiness
from kvrun.telemetry.exposition import Labelled, render

HELD_S = 1.0
"""For so long what was found of the folder is said again: anyone may ask, as often as they like."""


class WitnessMetrics:
    """Counts answers, and reads ``state`` when it is asked. Thread-safe.

    ``logs``: how many it was given keys of. ``clock``: any monotonic seconds.
    """

    def __init__(
        self, state: WitnessState, logs: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[float, Readiness] | None = None
        self._registry = CollectorRegistry()
        self._cosigned = Counter(
            "kvrun_witness_cosigned",
            "Checkpoints that were cosigned, by what they were to the witness.",
            ("result",),
            registry=self._registry,
        )
        self._refused = Counter(
            "kvrun_witness_refused",
            "Checkpoints that were not cosigned, by reason.",
            ("reason",),
            registry=self._registry,
        )
        for result in Cosigned:
            self._cosigned.labels(str(result))
        for reason in Refused:
            self._refused.labels(str(reason))

    @property
    def probes(self) -> Probes:
        """What ``/healthz``, ``/readyz`` and ``/metrics`` answer."""
        return Probes(lambda: True, self.readiness, self.render)

    def answered(self, outcome: Cosigned | Refused) -> None:
        """A request for a cosignature was answered."""
        counter = self._cosigned if isinstance(outcome, Cosigned) else self._refused
        counter.labels(str(outcome)).inc()

    def readiness(self) -> Readiness:
        """Ready while the memory can be written and the key lies beside it."""
        with self._lock:
            now = self._clock()
            if self._held is None or not 0 <= now - self._held[0] < HELD_S:
                parts = self._state.parts()
                ready = all(found == "ok" for found in parts.values())
                self._held = (now, Readiness(ready, parts))
            return self._held[1]

    def render(self) -> bytes:
        """Prometheus's text format."""
        labels = {"witness": self._state.key.name}
        return render(Labelled(self, labels), Labelled(self._registry, labels))

    def collect(self) -> Iterator[Metric]:
        """The families as they are now; of a memory that cannot be read only that it is so."""
        yield GaugeMetricFamily(
            "kvrun_witness_available",
            "Whether the witness can remember and cosign (1).",
            value=float(self.readiness().ready),
        )
        yield GaugeMetricFamily(
            "kvrun_witness_logs", "Logs whose checkpoints are cosigned.", value=float(self._logs)
        )
        try:
            remembered, last = self._state.extent()
        except WitnessError:
            return
        yield GaugeMetricFamily(
            "kvrun_witness_remembered_logs",
            "Logs of which a checkpoint was cosigned.",
            value=float(remembered),
        )
        yield GaugeMetricFamily(
            "kvrun_witness_cosigned_timestamp_seconds",
            "The latest time stated in a cosignature, in seconds since 1970; 0 before the first.",
            value=float(last),
        )
