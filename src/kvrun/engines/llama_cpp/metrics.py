"""What the slot server counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class SlotMetrics:
    """The counters behind the slot server's ``/metrics``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvrun_engine_requests",
            "Requests answered, by whether the cache was governed for them.",
            ["cache"],
            registry=self.registry,
        )
        self.finished = Counter(
            "kvrun_engine_requests_finished",
            "Requests whose answer was complete.",
            registry=self.registry,
        )
        self.running = Gauge(
            "kvrun_engine_requests_running", "Requests under way.", registry=self.registry
        )
        self.states = Counter(
            "kvrun_engine_states",
            "States of slots kept, dropped, and faults that cost a reuse.",
            ["result"],
            registry=self.registry,
        )
        self.reused_tokens = Counter(
            "kvrun_engine_reused_tokens",
            "Prompt tokens restored and used.",
            registry=self.registry,
        )
        self.slots_zeroed = Gauge(
            "kvrun_engine_slots_zeroed", "Slots zeroed after erasures.", registry=self.registry
        )

    def render(self) -> bytes:
        """Prometheus' text form."""
        return generate_latest(self.registry)
