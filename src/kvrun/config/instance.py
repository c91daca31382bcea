"""``[instance]``: the daemon of one box; where it keeps data and how much of it."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from kvrun.config.values import ByteSize, Section, setting

GIB = 2**30


class InstanceSection(Section):
    """The instance daemon: folders, tiers, sealing threads and deadlines."""

    data_dir: Path = setting(
        Path("kvrun-data"),
        "Folder for keys, sealed blocks, audit log, sockets and process logs; relative to the "
        "file's folder.",
    )
    memory_bytes: ByteSize = setting(
        GIB, "Size of the memory tier (sealed blocks in RAM).", ge=2**20
    )
    disk_bytes: ByteSize = setting(
        10 * GIB, "Size of the disk tier (survives restarts); 0 switches it off."
    )
    object_tier: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Keep sealed blocks in the workspace's Storage too (storage.url), so that "
        "another box starts warm. auto: where storage.url names an object store (s3, gs, az).",
    )
    object_pack_bytes: ByteSize = setting(
        32 * 2**20,
        "Size of an object that holds many sealed blocks of one session.",
        ge=2**16,
        le=2**30,
    )
    object_pack_age_s: float = setting(
        10.0,
        "Longest wait of a sealed block until it is written to Storage with others, in seconds.",
        ge=0.1,
        le=3600,
    )
    tenant_memory_bytes: ByteSize | None = setting(
        None, "What one tenant may hold of the memory tier; unset: all that others leave.", ge=2**20
    )
    tenant_disk_bytes: ByteSize | None = setting(
        None, "What one tenant may hold of the disk tier; unset: all that others leave.", ge=2**20
    )
    block_ttl_s: int | None = setting(
        None,
        "Seconds after which a sealed block is removed from every tier, from its storing on; "
        "unset: it stays until there is no room or its session's key is destroyed.",
        ge=60,
    )
    staging_bytes: ByteSize | None = setting(
        None,
        "Staging region of each engine worker; unset: sized for one longest prompt at engine "
        "start.",
    )
    sealing_threads: int = setting(
        2, "Threads that seal blocks, and as many that open them.", ge=1, le=64
    )
    sealing_cpus: tuple[int, ...] | None = setting(
        None, "Cores that the sealing threads are pinned to in turn; unset: not pinned."
    )
    match_deadline_ms: int = setting(
        200, "Longest wait for the daemon to say what it holds; past it: a miss.", ge=1, le=60_000
    )
    load_deadline_ms: int = setting(
        5000,
        "Longest wait for one request's blocks to be opened; past it: recompute.",
        ge=1,
        le=600_000,
    )
    socket: Path | None = setting(
        None, "Unix socket of the daemon; unset: run/instance.sock in data_dir."
    )
    token_file: Path | None = setting(
        None,
        "JSON file with the launch tokens, for `kvrun instance` run alone; unset: run/tokens.json "
        "in data_dir.",
    )
    claim_public_key_file: Path | None = setting(
        None,
        "File with the gateway's claim public key (hex), for processes run alone; unset: "
        "run/claim.pub in data_dir.",
    )
    metrics_port: int | None = setting(
        None,
        "TCP port on 127.0.0.1 for /healthz, /readyz and /metrics; unset: none.",
        ge=1,
        le=65535,
    )
    metrics_socket: Path | None = setting(None, "Unix socket (0600) for the same; unset: none.")
    metrics_tenants: int = setting(
        0,
        "How many tenants, those with most in memory, the metrics show by pseudonym; the others "
        "together.",
        ge=0,
        le=100,
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="How much the daemon writes to its process log."
    )
