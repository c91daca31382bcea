"""Two daemons of one deployment over one bucket, with keys leased from one key service."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_rig import Made, all_found, asked, blocks, bucket_of, fill, hashes, reused
from test_instance_key_service import Box, erase

from support.byhand import HandEngine
from support.client import eventually
from support.daemon import PATIENT, Daemon
from support.object_stores import ObjectStore
from support.packs import assert_whole_packs

KEY = ("tenant-0", "session-0")


@pytest.fixture
def shared(moto_store: ObjectStore) -> Iterator[tuple[Box, str]]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    bucket, url = bucket_of(moto_store)
    settings = PATIENT + "disk_bytes = 0\nobject_pack_age_s = 0.2\n"
    settings += f'[keys]\nmode = "service"\nsocket = "{folder}/k/keys.sock"\nlease_s = 3\n'
    daemons = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        daemons.append(Daemon(folder / name, settings=settings + moto_store.settings(url)))
    box = Box(folder, *daemons)
    try:
        box.serve()
        for daemon in daemons:
            daemon.start()
        yield box, bucket
    finally:
        for daemon in daemons:
            daemon.kill()
        if box.service is not None:
            box.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_each_reads_what_the_other_wrote_and_an_erasure_by_one_ends_it_for_both(
    shared: tuple[Box, str], moto_store: ObjectStore
) -> None:
    box, bucket = shared
    one, two = box.first, box.second
    with (
        HandEngine(one.socket, one.engine_token) as here,
        HandEngine(two.socket, two.engine_token) as there,
    ):
        made = fill(one, here, tenants=2, sessions=1, count=6)
        all_found(two, there, made)
        assert reused(two, there, made) == (12, 0)
        # Both write for the same session, neither knows of the other's blocks yet.
        fresh: dict[str, Made] = {}
        for daemon, engine in ((one, here), (two, there)):
            mine = fresh[str(daemon.folder)] = {KEY: blocks(3)}
            answer = asked(daemon, engine, KEY, [])
            engine.store(answer.handle, mine[KEY])
            eventually(
                lambda d=daemon, e=engine, m=mine: all(asked(d, e, KEY, hashes(m[KEY])).tiers[0]),
                "sealed",
            )
            daemon.admin("flush")
    objects = moto_store.packs(bucket)
    assert_whole_packs(objects)
    two.stop()
    two.start()
    with HandEngine(two.socket, two.engine_token) as there:
        for mine in (made, *fresh.values()):
            all_found(two, there, mine)
            good, bad = reused(two, there, mine)
            assert (good > 0, bad) == (True, 0)
        erase(one, KEY[0])
        left = {name.split("/")[-3] for name in moto_store.pack_names(bucket)}
        assert len(left) == 1, "the packs of the other tenant alone"
        for mine in fresh.values():
            assert not any(asked(two, there, KEY, hashes(mine[KEY])).tiers[0])
        kept = {key: its for key, its in made.items() if key != KEY}
        assert reused(two, there, kept) == (6, 0)
    for daemon in (one, two):
        assert daemon.count("integrity_failure") == 0
