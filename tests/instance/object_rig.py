"""Daemons whose sealed blocks go to a bucket, and an engine by hand that fills and asks them."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from test_instance_requests import admit, blocks, hashes, stored

from kvrun.instance.protocol import Matched
from support.byhand import HandEngine
from support.client import eventually
from support.daemon import PATIENT, Daemon
from support.object_stores import ObjectStore

Made = dict[tuple[str, str], list[tuple[bytes, bytes]]]
KEPT = ("keys", "erasure", "signing")
"""What has to come along to another machine, beside the key root."""


def bucket_of(store: ObjectStore) -> tuple[str, str]:
    """A new bucket: its name and its URL."""
    name = f"b{secrets.token_hex(8)}"
    return name, store.bucket(name)


@contextmanager
def daemon_on(
    store: ObjectStore,
    url: str,
    *,
    endpoint: str = "",
    disk: bool = False,
    kept: Path | None = None,
    root: Path | None = None,
    settings: str = "",
) -> Iterator[Daemon]:
    """A running daemon in a folder of its own; ``kept`` is the data folder that it goes on with.

    With ``root``, a folder of a file root, it has the keys that it finds in the bucket instead.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    daemon = Daemon(
        folder,
        settings=PATIENT
        + ("" if disk else "disk_bytes = 0\n")
        + "object_pack_age_s = 0.2\n"
        + settings
        + store.settings(url, endpoint),
    )
    try:
        if kept is not None:
            for name in KEPT:
                shutil.copytree(kept / name, daemon.data / name)
            shutil.copytree(kept.with_name(f"{kept.name}-root"), daemon.root)
        if root is not None:
            shutil.copytree(root, root_of(daemon))
            fetch = [sys.executable, "-m", "kvrun", "keys", "fetch", "--config"]
            subprocess.run([*fetch, str(daemon.config)], check=True)
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


def root_of(daemon: Daemon) -> Path:
    """The folder of the daemon's file root."""
    return daemon.root


def wait_copied(daemon: Daemon, store: ObjectStore, bucket: str) -> None:
    """Until the bucket has a copy of the keys as they are now."""
    changed = (daemon.data / "keys" / "keys.slots").stat().st_mtime_ns // 1000

    def copied() -> bool:
        names = [name for name in store.names(bucket) if name.endswith(".kvk")]
        return len(names) == 1 and int(names[0].rpartition("/")[2][:20]) > changed

    eventually(copied, "the keys are copied to the bucket", 60)


def fill(daemon: Daemon, engine: HandEngine, *, tenants: int, sessions: int, count: int) -> Made:
    """Blocks of several sessions, all of them in the bucket when this returns."""
    made: Made = {}
    for tenant in range(tenants):
        for session in range(sessions):
            key = (f"tenant-{tenant}", f"session-{session}")
            made[key] = stored(daemon, engine, key[0], count, key[1])
    daemon.admin("flush")
    return made


def asked(daemon: Daemon, engine: HandEngine, key: tuple[str, str], wanted: list[bytes]) -> Matched:
    """An admitted request; the session's packs were looked for."""
    return admit(daemon, engine, key[0], wanted, session=key[1])


def reused(daemon: Daemon, engine: HandEngine, made: Made) -> tuple[int, int]:
    """How many of these blocks open to what was stored, and how many do not open.

    Any that opens to something else fails.
    """
    good = bad = 0
    for key, its in made.items():
        answer = asked(daemon, engine, key, hashes(its))
        found = [h for h, tier in zip(hashes(its), answer.tiers[0], strict=True) if tier]
        opened = engine.load(answer.handle, found)
        assert opened.plain.items() <= dict(its).items(), "a wrong block"
        good += len(opened.plain)
        bad += len(its) - len(opened.plain)
        engine.finish(answer.handle)
    return good, bad


def all_found(daemon: Daemon, engine: HandEngine, made: Made) -> None:
    """Waits until every block is found again."""
    for key, its in made.items():
        eventually(
            lambda key=key, its=its: all(asked(daemon, engine, key, hashes(its)).tiers[0]),
            f"the blocks of {key} are found",
        )


__all__ = [
    "KEPT", "Made", "all_found", "asked", "blocks", "bucket_of", "daemon_on", "fill", "hashes",
    "reused", "root_of", "stored", "wait_copied",
]  # fmt: skip
