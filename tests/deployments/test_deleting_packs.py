"""Deleting a deployment leaves its log and certificates in the bucket, and no sealed block."""

import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from deploy_rig import WORKSPACE, Rig, spec

from audit.simulator import honest
from kvrun.config.layout import storage_prefix
from kvrun.control.closing import store_rest
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
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


def test_a_deletion_ends_where_the_log_is_held_longer_already_and_says_until_when(
    moto_store: ObjectStore, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier try stored all of it; since then the bucket's owner holds it longer."""
    bucket = f"b{secrets.token_hex(8)}"
    named = {name: moto_store.options[name] for name in ("access_key_id", "secret_access_key")}
    client = boto3.client(
        "s3",
        endpoint_url=moto_store.endpoint,
        region_name="us-east-1",
        **{f"aws_{name}": value for name, value in named.items()},
    )
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    options = {f"storage.options.{key}": value for key, value in moto_store.options.items()}
    held = {"storage.url": f"s3://{bucket}", "audit.retention_days": "30"}
    rig = Rig(short_folder, settings={**held, **options})
    try:
        made = rig.deployments.create(WORKSPACE, spec())
        plane = ControlPlane(rig.deployments.config_of(made.id))
        log = honest(short_folder / "log", f"{WORKSPACE}/{made.id}/one").folder
        shutil.copytree(log, plane.config.layout.audit, dirs_exist_ok=True)
        run_round(plane, reason="on_demand")
        assert store_rest(plane) == ()
        until = datetime.now(UTC) + timedelta(days=400)
        retention = {"Mode": "COMPLIANCE", "RetainUntilDate": until}
        names = moto_store.names(bucket)
        assert [name for name in names if "/audit/" in name]
        for name in names:
            client.put_object_retention(Bucket=bucket, Key=name, Retention=retention)
        asked = BaseClient._make_api_call

        def answer(client: BaseClient, operation: str, given: dict[str, object]) -> object:
            if operation == "PutObjectRetention":  # S3 shortens none, moto would
                raise ClientError({"Error": {"Code": "AccessDenied"}}, operation)
            return asked(client, operation, given)

        monkeypatch.setattr(BaseClient, "_make_api_call", answer)
        done = rig.deployments.delete(made.id, "petra")
        assert done.deployment.state is DeploymentState.DELETED
        assert f"is held until {until:%Y-%m-%d}" in done.deployment.reason
        assert "/audit/" in done.deployment.reason
    finally:
        rig.close()
