"""Two daemons in two regions, each with a bucket of its own in an S3 server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_rig import bucket_of
from test_instance_residency import Rig, blocks, hashes, keep, policy

from kvrun.errors import KvrunError
from support.byhand import HandEngine
from support.client import eventually
from support.daemon import PATIENT
from support.object_stores import ObjectStore


class Place(Rig):
    """A daemon in a region and its bucket."""

    def __init__(self, store: ObjectStore, region: str) -> None:
        self.store = store
        self.bucket, url = bucket_of(store)
        super().__init__(
            Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp")),
            store.settings(url),
            region=region,
            instance=PATIENT + "object_pack_age_s = 0.2\n",
        )
        self.daemon.start()

    def engine(self) -> HandEngine:
        return HandEngine(self.daemon.socket, self.daemon.engine_token)

    def tenants_in_bucket(self) -> set[str]:
        """The pseudonyms whose packs are in the bucket."""
        names = self.store.names(self.bucket)
        return {name.split("/kv/")[1].split("/")[0] for name in names if "/kv/" in name}

    def ref(self, tenant: str, tenant_class: str) -> str:
        """Label a tenant; its pseudonym here."""
        self.label(tenant, tenant_class)
        return list(self.tenants)[-1]


@pytest.fixture
def places(moto_store: ObjectStore) -> Iterator[dict[str, Place]]:
    made = {name: Place(moto_store, region) for name, region in REGIONS.items()}
    yield made
    for place in made.values():
        place.daemon.kill()
        shutil.rmtree(place.daemon.folder, ignore_errors=True)


REGIONS = {"eu": "eu-west-1", "us": "us-east-1"}
HOME = {"alice": "eu", "bob": "us"}


def test_an_eu_user_is_in_the_eu_bucket_only_and_leaves_it_by_policy(
    places: dict[str, Place],
) -> None:
    both = (policy("eu"), policy("us", regions="us-*"))
    refs: dict[tuple[str, str], str] = {}
    for name, place in places.items():
        for tenant, tenant_class in HOME.items():
            with place.engine() as engine:
                place.found(engine, tenant, hashes(blocks(9, 1)))  # its first request
            refs[name, tenant] = place.ref(tenant, tenant_class)
        place.activate("a" * 40, *both)
        with place.engine() as engine:
            for tenant in ("alice", "bob"):
                if name == HOME[tenant]:
                    keep(place, engine, tenant, blocks(ord(tenant[0])))
                    continue
                with pytest.raises(KvrunError, match="does not allow this tenant"):
                    place.admit(engine, tenant, hashes(blocks(9, 1)))
    expected = {name: {refs[name, tenant]} for name, tenant in (("eu", "alice"), ("us", "bob"))}
    assert {name: place.tenants_in_bucket() for name, place in places.items()} == expected
    eu = places["eu"]
    # The box is lost; another has the keys and the bucket, and the policy only later.
    eu.daemon.kill()
    shutil.rmtree(eu.daemon.data / "storage")
    policies = eu.daemon.data / "residency"
    policies.rename(eu.daemon.folder / "away")
    eu.daemon.start()
    with eu.engine() as engine:
        assert eu.found(engine, "alice", hashes(blocks(ord("a")))) == b"\0\0\0"
    eventually(lambda: eu.daemon.admin("residency_sweep")["done"], "nothing is to be taken away")
    assert eu.tenants_in_bucket() == expected["eu"]
    eu.daemon.kill()
    shutil.rmtree(policies, ignore_errors=True)
    (eu.daemon.folder / "away").rename(policies)
    eu.daemon.start()
    with eu.engine() as engine:
        eventually(
            lambda: eu.found(engine, "alice", hashes(blocks(ord("a")))) == b"\3\3\3",
            "the packs are found",
        )
    assert {name: place.tenants_in_bucket() for name, place in places.items()} == expected
    # Nobody opened the session since this start, and the new policy has no place for it.
    eu.daemon.kill()
    eu.daemon.start()
    eu.activate("b" * 40, policy("us", regions="us-*"))
    eventually(lambda: eu.tenants_in_bucket() == set(), "the packs leave the bucket")
    assert places["us"].tenants_in_bucket() == expected["us"]
