"""What is in the bucket: it brings another machine back warm, and nobody else learns from it."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from object_rig import (
    all_found,
    asked,
    blocks,
    bucket_of,
    daemon_on,
    fill,
    hashes,
    reused,
    root_of,
    stored,
    wait_copied,
)

from kvrun.erasure.certificate import decode_statement
from kvrun.erasure.document import parse_certificate, payload_of
from kvrun.instance.protocol import Verdict
from support.byhand import HandEngine
from support.client import eventually, grant
from support.object_stores import ObjectStore


def test_an_empty_box_with_the_keys_and_the_bucket_reuses_what_was_persisted(
    any_store: ObjectStore,
) -> None:
    bucket, url = bucket_of(any_store)
    with daemon_on(any_store, url) as old:
        with HandEngine(old.socket, old.engine_token) as engine:
            made = fill(old, engine, tenants=2, sessions=2, count=50)
        old.stop()
        names = list(any_store.packs(bucket))
        assert all("/deployments/default/kv/" in name for name in names)
        with daemon_on(any_store, url, kept=old.data) as new:
            with HandEngine(new.socket, new.engine_token) as engine:
                all_found(new, engine, made)
                good, bad = reused(new, engine, made)
                assert good >= 0.99 * (good + bad)
                assert good == 200
            new.stop()
            events = Counter((record["event"], record.get("tier")) for record in new.events())
            assert events["opened", "object"] >= 1
            assert events["restored", "object"] >= 1
            assert ("sealed", "memory") not in events
        persisted = [r for r in old.events() if r["event"] == "persisted"]
        assert {(r["tier"], r["tier_to"]) for r in persisted} == {("memory", "object")}
        assert sum(int(str(r["blocks"])) for r in persisted) == 200


def test_the_bucket_and_the_root_alone_bring_a_lost_machine_back(moto_store: ObjectStore) -> None:
    bucket, url = bucket_of(moto_store)
    with daemon_on(moto_store, url) as old:
        with HandEngine(old.socket, old.engine_token) as engine:
            made = fill(old, engine, tenants=2, sessions=2, count=25)
        wait_copied(old, moto_store, bucket)
        old.kill()
        with daemon_on(moto_store, url, root=root_of(old)) as new:
            with HandEngine(new.socket, new.engine_token) as engine:
                all_found(new, engine, made)
                good, bad = reused(new, engine, made)
            assert good >= 0.99 * (good + bad)
            assert good == 100


def test_an_empty_machine_started_too_early_leaves_the_lost_ones_keys_in_the_bucket(
    moto_store: ObjectStore,
) -> None:
    bucket, url = bucket_of(moto_store)

    def key_copies() -> list[str]:
        return [name for name in moto_store.names(bucket) if name.endswith(".kvk")]

    with daemon_on(moto_store, url) as old:
        with HandEngine(old.socket, old.engine_token) as engine:
            made = fill(old, engine, tenants=1, sessions=1, count=5)
        wait_copied(old, moto_store, bucket)
        old.kill()
        copy = key_copies()
        with daemon_on(moto_store, url) as early:

            def refused() -> str:
                status = early.admin("status")
                assert isinstance(status, dict)
                return str(status["protections"].get("key_copy", ""))

            eventually(
                lambda: bool(refused()), "the daemon says that it does not copy its keys", 30
            )
            assert "kvrun keys fetch" in refused()
            with HandEngine(early.socket, early.engine_token) as engine:
                fill(early, engine, tenants=1, sessions=2, count=2)
            early.stop()
            assert key_copies() == copy
        with (
            daemon_on(moto_store, url, root=root_of(old)) as new,
            HandEngine(new.socket, new.engine_token) as engine,
        ):
            all_found(new, engine, made)
            assert reused(new, engine, made) == (5, 0)


def test_a_bucket_put_back_from_before_an_erasure_opens_the_others_only_with_todays_root(
    moto_store: ObjectStore, short_folder: Path
) -> None:
    bucket, url = bucket_of(moto_store)
    with daemon_on(moto_store, url) as old:
        with HandEngine(old.socket, old.engine_token) as engine:
            made = fill(old, engine, tenants=2, sessions=1, count=4)
        wait_copied(old, moto_store, bucket)
        before, root_before = moto_store.objects(bucket), short_folder / "root"
        shutil.copytree(root_of(old), root_before)
        old.admin("erase_session", tenant="tenant-0", session="session-0")
        wait_copied(old, moto_store, bucket)
        old.stop()
        after = moto_store.objects(bucket)
        assert not {name for name in before if name.endswith(".kvk")} & set(after)
        # Every object as it was, keys and packs: what was erased does not open.
        moto_store.put_back(bucket, before)
        with (
            daemon_on(moto_store, url, root=root_of(old)) as new,
            HandEngine(new.socket, new.engine_token) as engine,
        ):
            assert reused(new, engine, made) == (4, 4)
        # With the root of that time it does, which is why that must not be kept.
        moto_store.put_back(bucket, before)
        with (
            daemon_on(moto_store, url, root=root_before) as new,
            HandEngine(new.socket, new.engine_token) as engine,
        ):
            all_found(new, engine, made)
            assert reused(new, engine, made) == (8, 0)


def test_a_copy_of_the_bucket_opens_nothing_for_another_deployments_keys(
    moto_store: ObjectStore,
) -> None:
    _, url = bucket_of(moto_store)
    with daemon_on(moto_store, url) as owner:
        with HandEngine(owner.socket, owner.engine_token) as engine:
            made = fill(owner, engine, tenants=1, sessions=1, count=5)
        # The same names, ids, model and bucket: all that is missing are the keys.
        with (
            daemon_on(moto_store, url) as thief,
            HandEngine(thief.socket, thief.engine_token) as engine,
        ):
            key, its = next(iter(made.items()))
            assert not any(asked(thief, engine, key, hashes(its)).tiers[0])
            own = stored(thief, engine, "tenant-0", session="session-0")
            thief.admin("flush")
            assert reused(thief, engine, {key: own}) == (4, 0)
            assert not any(asked(thief, engine, key, hashes(its)).tiers[0])
        # And what it wrote beside them disturbs nobody.
        with HandEngine(owner.socket, owner.engine_token) as engine:
            assert reused(owner, engine, made) == (5, 0)


def test_the_bucket_does_not_show_whether_two_users_sent_the_same_text(
    moto_store: ObjectStore,
) -> None:
    bucket, url = bucket_of(moto_store)
    same, other = blocks(6), blocks(6)
    sent = {"alice": same, "bob": same, "carol": other}
    with daemon_on(moto_store, url) as daemon:
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            for tenant, made in sent.items():
                answer = asked(daemon, engine, (tenant, "default"), hashes(made))
                engine.store(answer.handle, made)
                eventually(
                    lambda t=tenant, m=made: all(
                        asked(daemon, engine, (t, "default"), hashes(m)).tiers[0]
                    ),
                    "sealed",
                )
        daemon.admin("flush")
    found = moto_store.packs(bucket)
    by_user: dict[str, bytes] = {}
    for name, data in found.items():
        folder = name.rpartition("/")[0]
        by_user[folder] = by_user.get(folder, b"") + data
    assert len(by_user) == 3
    # The same sizes whether the text is the same or not, and no run of bytes in common but headers.
    assert len({len(data) for data in by_user.values()}) == 1
    runs = [{data[at : at + 16] for at in range(len(data) - 16)} for data in by_user.values()]
    alike = [len(runs[a] & runs[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert max(alike) - min(alike) <= 2
    for block_hash, plain in (*same, *other):
        for data in by_user.values():
            assert block_hash[:16] not in data
            assert plain[:32] not in data


def test_an_erasure_deletes_the_sessions_packs_and_says_so(moto_store: ObjectStore) -> None:
    bucket, url = bucket_of(moto_store)
    with daemon_on(moto_store, url, disk=True) as daemon:
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            made = fill(daemon, engine, tenants=2, sessions=1, count=4)
        before = set(moto_store.packs(bucket))
        done = daemon.admin("erase_session", tenant="tenant-0", session="session-0")
        assert done
        left = set(moto_store.packs(bucket))
        assert len(left) < len(before)
        assert len({name.split("/")[-3] for name in left}) == 1
        (certificate,) = daemon.data.rglob("certificates/*.json")
        statement = decode_statement(payload_of(parse_certificate(certificate.read_bytes())))
        tiers = {tier.tier: tier for tier in statement.tiers}
        assert (tiers["object"].blocks, tiers["object"].unlinked) == (4, True)
        with HandEngine(daemon.socket, daemon.engine_token) as engine:
            gone, kept = ("tenant-0", "session-0"), ("tenant-1", "session-0")
            granted = grant(daemon, *gone)
            claim = daemon.claim(gone[0], granted.salt, granted.generation, session=gone[1])
            answer = engine.match(claim, granted.salt, hashes(made[gone]))
            assert answer.verdict is Verdict.ADMITTED
            assert not any(answer.tiers[0])
            assert reused(daemon, engine, {kept: made[kept]}) == (4, 0)
