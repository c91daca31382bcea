"""``[audit]``: how the log is written, how often it is collected and how long that is kept."""

from pathlib import Path
from typing import Literal

from kvrun.config.values import ByteSize, Section, setting


class AuditSection(Section):
    """The append-only audit log of the instance."""

    mode: Literal["require", "best_effort"] = setting(
        "require",
        '"require": what cannot be logged is not sealed, opened or reused; "best_effort": it is, '
        "and the log shows a gap.",
    )
    segment_bytes: ByteSize = setting(
        64 * 2**20, "A segment is closed at this size.", ge=64 * 1024, le=2**40
    )
    segment_max_age_s: int = setting(
        3600, "A segment is closed at this age (seconds).", ge=1, le=30 * 86_400
    )
    quota_bytes: ByteSize = setting(
        16 * 2**30,
        "What the log may take on disk until it is collected. From 80 % on `kvrun status` and the "
        "daemon's log warn; when it is used up, that is like a full disk.",
        ge=2**20,
        le=2**50,
    )
    heartbeat_s: int = setting(
        60, "Seconds between heartbeat records, so that silence is visible.", ge=1, le=86_400
    )
    collect_every_s: int = setting(
        180, "Seconds between two collections of each instance's log.", ge=1, le=86_400
    )
    metrics_key_file: Path | None = setting(
        None,
        "File with an API key of the scope metrics: with it the gateway's request counts are "
        "compared with the log's.",
    )
    collector_metrics_port: int | None = setting(
        None,
        "TCP port on 127.0.0.1 for /healthz, /readyz and /metrics of the collector; unset: none.",
        ge=1,
        le=65535,
    )
    collector_metrics_socket: Path | None = setting(
        None, "Unix socket (0600) for the same; unset: none."
    )
    retention_days: int = setting(
        396,
        "Collected records of the workspace are pruned when they were collected this many days "
        "ago (13 months); 0 keeps them for ever.",
        ge=0,
        le=36_600,
    )
