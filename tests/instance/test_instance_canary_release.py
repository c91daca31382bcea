"""A self-test's canary lets go of what it has by tier, and nobody else can be made to."""

from __future__ import annotations

import pytest
from object_rig import asked, bucket_of, daemon_on, hashes, reused, stored

from kvrun.cache.events import Tier
from kvrun.errors import KvrunError
from kvrun.isolation.target import CANARY_PREFIX
from support.byhand import HandEngine
from support.object_stores import ObjectStore

CANARY = (f"{CANARY_PREFIX}0-a", f"{CANARY_PREFIX}0-1")
ALICE = ("alice", "default")


def test_a_canarys_blocks_leave_the_tiers_above_one_and_nobody_elses_do(
    moto_store: ObjectStore,
) -> None:
    _, url = bucket_of(moto_store)
    with (
        daemon_on(moto_store, url, disk=True) as daemon,
        HandEngine(daemon.socket, daemon.engine_token) as engine,
    ):
        made = {
            key: stored(daemon, engine, key[0], session=key[1], count=4) for key in (CANARY, ALICE)
        }

        def tiers(key: tuple[str, str]) -> set[int]:
            answer = asked(daemon, engine, key, hashes(made[key]))
            engine.finish(answer.handle)
            return set(answer.tiers[0])

        def release(tier: str, key: tuple[str, str] = CANARY) -> object:
            return daemon.admin("release_above", tenant=key[0], session=key[1], tier=tier)

        assert release("memory") == {"blocks": 0}
        assert (tiers(CANARY), tiers(ALICE)) == ({Tier.MEMORY}, {Tier.MEMORY})
        assert release("disk") == {"blocks": 4}
        assert (tiers(CANARY), tiers(ALICE)) == ({Tier.DISK}, {Tier.MEMORY})
        assert reused(daemon, engine, {CANARY: made[CANARY]}) == (4, 0)  # and so they are in memory
        assert release("object") == {"blocks": 8}
        assert (tiers(CANARY), tiers(ALICE)) == ({Tier.OBJECT}, {Tier.MEMORY})
        assert reused(daemon, engine, {CANARY: made[CANARY], ALICE: made[ALICE]}) == (8, 0)

        with pytest.raises(KvrunError, match="only the sessions of a self-test"):
            release("object", ALICE)
        with pytest.raises(KvrunError, match="no tier 'gpu'"):
            release("gpu")
        with pytest.raises(KvrunError, match="has no key"):
            release("disk", ("nobody", CANARY[1]))
        assert tiers(ALICE) == {Tier.MEMORY}
        daemon.stop()
        evicted = [record for record in daemon.events() if record["event"] == "evicted"]
        assert {record["reason"] for record in evicted} == {"isolation self-test"}
