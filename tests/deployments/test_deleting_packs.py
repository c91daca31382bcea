"""Deleting a deployment leaves its log and certificates in the bucket, and no sealed block."""

import secrets
from pathlib import Path

import pytest
from deploy_rig import WORKSPACE, Rig, spec

from kvrun.config.layout import storage_prefix
from kvrun.deployments.model import DeploymentState
from kvrun.errors import KvrunError
from kvrun.storage import open_storage
from support.faultproxy import Fault, FaultProxy
from support.object_stores import ObjectStore


def test_deleting_leaves_log_and_certificates_in_the_bucket_and_no_block(
    moto_store: ObjectStore, short_folder: Path
) -> None:
    url = moto_store.bucket(f"b{secrets.token_hex(8)}")
    proxy = FaultProxy(moto_store.endpoint)
    options = {f"storage.options.{key}": value for key, value in moto_store.options.items()}
    rig = Rig(
        short_folder,
        settings={"storage.url": url, **options, "storage.options.endpoint": proxy.url},
    )
    storage = open_storage(url, moto_store.options)
    try:
        made, other = (rig.deployments.create(WORKSPACE, spec(name)) for name in ("one", "two"))
        for deployment in (made, other):
            prefix = storage_prefix(WORKSPACE, deployment.id)
            for name in (
                "kv/t/s/a.kvp",
                "kv/t/s2/b.kvp",
                "keys/1-a.kvk",
                "audit/log/c",
                "certificates/d.json",
            ):
                storage.create(f"{prefix}/{name}", b"x")
        proxy.fault = Fault.FORBIDDEN
        with pytest.raises(KvrunError, match="cannot be used"):
            rig.deployments.delete(made.id, "petra")
        assert rig.deployments.get(made.id).state is DeploymentState.DELETING
        proxy.fault = Fault.NONE
        rig.deployments.delete(made.id, "petra")
        left = {item.name for item in storage.list(storage_prefix(WORKSPACE, made.id))}
        assert {name.split("/")[3] for name in left} == {"audit", "certificates"}
        assert len(list(storage.list(storage_prefix(WORKSPACE, other.id)))) == 5
    finally:
        rig.close()
        proxy.close()
