"""A daemon killed at any moment leaves no half pack, nothing temporary, and never a wrong block."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from object_rig import bucket_of, daemon_on

from kvrun.storage import open_storage
from support.client import eventually
from support.daemon import Daemon
from support.object_stores import ObjectStore
from support.packs import assert_whole_packs


class Load:
    """A driver process under load, and what came of it so far."""

    def __init__(self, daemon: Daemon) -> None:
        given = {
            "engine": daemon.engine_token,
            "gateway": daemon.gateway_token,
            "claim": daemon.claim_key.private_bytes_raw().hex(),
        }
        script = Path(__file__).with_name("object_driver.py")
        self.output = daemon.folder / "answers"
        with self.output.open("wb") as out, self.output.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(daemon.socket), json.dumps(given)],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def said(self, what: str) -> list[str]:
        lines = self.output.read_text().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        return [value for said, value in words if said == what]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def kill_under_load(daemon: Daemon, times: int, seed: int) -> Load:
    chance = random.Random(seed)
    load = Load(daemon)
    try:
        for _ in range(times):
            seen = len(load.said("stored"))
            eventually(lambda seen=seen: len(load.said("stored")) > seen + 1, "requests", 60)
            time.sleep(chance.uniform(0, 0.3))
            daemon.kill()
            daemon.start()
        seen = len(load.said("opened"))
        eventually(lambda: len(load.said("opened")) > seen + 10, "requests", 60)
    finally:
        load.stop()
    assert load.said("WRONG") == []
    return load


def opened_by_tier(daemon: Daemon) -> Counter[str]:
    counted: Counter[str] = Counter()
    for record in daemon.events():
        if record["event"] == "opened":
            counted[str(record["tier"])] += int(str(record["blocks"]))
    return counted


def on_an_object_store(store: ObjectStore, times: int, seed: int) -> None:
    bucket, url = bucket_of(store)
    with daemon_on(store, url) as daemon:
        load = kill_under_load(daemon, times, seed)
        daemon.stop()
        objects = store.packs(bucket)
        assert objects
        assert_whole_packs(objects)
        assert store.uploads(bucket) == []
        # Blocks that an earlier daemon sealed were opened out of the bucket, and none failed.
        assert opened_by_tier(daemon)["object"] > 0
        assert daemon.count("integrity_failure") == 0
        assert "was passed over" not in daemon.log.read_text()
        assert len(load.said("opened")) > times


@pytest.mark.timeout(900)
def test_a_killed_daemon_leaves_whole_packs_and_no_wrong_block(moto_store: ObjectStore) -> None:
    on_an_object_store(moto_store, times=20, seed=21)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_killed_daemon_leaves_whole_packs_and_no_wrong_block_200_times(
    seaweedfs: ObjectStore,
) -> None:
    on_an_object_store(seaweedfs, times=200, seed=22)


def test_a_killed_daemon_leaves_no_temporary_file_in_a_mounted_folder(
    short_folder: Path,
) -> None:
    bucket = short_folder / "share"
    daemon = Daemon(
        short_folder,
        settings="disk_bytes = 0\nobject_pack_age_s = 0.1\n"
        f'object_tier = "on"\n[storage]\nurl = "file://{bucket}"\n',
    )
    daemon.start()
    try:
        kill_under_load(daemon, times=2, seed=23)
    finally:
        daemon.kill()
    files = [path for path in bucket.rglob("*") if path.is_file()]
    assert files
    packs = [path for path in files if "kv" in path.parts]
    assert packs
    assert_whole_packs({str(path): path.read_bytes() for path in packs})
    listed = open_storage(f"file://{bucket}").list("default")
    assert len(list(listed)) == len(files)
