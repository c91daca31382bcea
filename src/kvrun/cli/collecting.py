"""The collector as a process: its rounds, the webhook for alerts, and what it tells operators."""

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable

from kvrun.config import KvrunConfig
from kvrun.control.collector import CollectOutcome
from kvrun.control.metrics import CollectorMetrics
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import RoundReport, run_round
from kvrun.control.schedule import next_delay
from kvrun.control.webhook import Webhook, tell
from kvrun.errors import KvrunError
from kvrun.launch.counters import read_sample
from kvrun.process import PARENT_VARIABLE, end_with_parent
from kvrun.telemetry.endpoint import Probes, serving
from kvrun.telemetry.logs import LogFormat, configure_logging

_NICE = 10
_LOOK_S = 15.0  # alerts are acknowledged by other processes
_FAILED = (CollectOutcome.UNAVAILABLE,)
_log = logging.getLogger("kvrun.collector")


def run_collector(
    config: KvrunConfig, every_s: int | None, show: Callable[[RoundReport], None]
) -> None:
    """Collect and tell the webhook until SIGTERM or SIGINT; ``show`` gets each round's report."""
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    configure_logging(
        "collector", level=config.instance.log_level, log_format=LogFormat(config.log.format)
    )
    os.nice(_NICE)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    plane = ControlPlane(config)
    metrics, webhook = CollectorMetrics(plane), webhook_of(plane)
    probes = Probes(lambda: True, metrics.readiness, metrics.render)
    audit = config.audit
    with serving(
        probes, port=audit.collector_metrics_port, socket_file=audit.collector_metrics_socket
    ):
        next_round, failures = time.monotonic(), 0
        while not stop.is_set():
            if time.monotonic() >= next_round:
                failures = 0 if _round(plane, metrics, show) else failures + 1
                chance = random.random()  # noqa: S311
                next_round = time.monotonic() + next_delay(
                    every_s or audit.collect_every_s, failures, chance
                )
            metrics.delivery_done(tell(webhook))
            wait_s = max(0.0, next_round - time.monotonic())
            stop.wait(min(wait_s, _LOOK_S) if config.alerts.webhook_url else wait_s)


def webhook_of(plane: ControlPlane) -> Webhook:
    """The webhook that a control plane's settings name, if they name one."""
    return Webhook(plane.config.alerts, plane.alerts, plane.folder, plane.now)


def _round(
    plane: ControlPlane, metrics: CollectorMetrics, show: Callable[[RoundReport], None]
) -> bool:
    """One round; False where something could not be read."""
    config, began = plane.config, time.monotonic()
    try:
        report = run_round(plane, reason="scheduled", count=lambda: read_sample(config))
    except (KvrunError, OSError) as error:
        # What is wrong with Storage or the disk now may be right later; it is said each time.
        _log.error("%s", _said(error))
        metrics.round_done(None, time.monotonic() - began)
        return False
    metrics.round_done(report, time.monotonic() - began)
    show(report)
    return not any(item.outcome in _FAILED for item in report.logs)


def _said(error: KvrunError | OSError) -> str:
    return error.message if isinstance(error, KvrunError) else str(error)
