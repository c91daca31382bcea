"""Daemons whose sealed blocks go to a bucket, and an engine by hand that fills and asks them."""

from __future__ import annotations

import secrets
import shutil
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
KEPT = ("keys", "root", "erasure", "signing")
"""What has to come along to another machine."""


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
    settings: str = "",
) -> Iterator[Daemon]:
    """A running daemon in a folder of its own; ``kept`` is the data folder that it goes on with."""
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
        daemon.start()
        yield daemon
        daemon.stop()
    finally:
        daemon.kill()
        shutil.rmtree(folder, ignore_errors=True)


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
    "reused", "stored",
]  # fmt: skip
