"""Objects in a bucket with Object Lock are held, on a real S3 server (moto)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import md5
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, ConnectTimeoutError

from kvrun.config import load_config
from kvrun.control.plane import ControlPlane
from kvrun.storage import (
    ObjectExistsError,
    ObjectMissingError,
    Storage,
    StorageError,
    hold_objects,
    open_storage,
)
from kvrun.storage.objectlock import HoldingStorage
from support.s3_server import s3_server

NOW = datetime.now(UTC).timestamp()
WEEK_S = 7 * 86_400.0
S3 = tuple[Any, dict[str, str]]
MD5 = b64encode(md5(b"first").digest()).decode()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as (_, options):
        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint"],
            region_name=options["region"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )
        yield client, options


def holding(s3: S3, bucket: str, mode: str = "governance", *, locked: bool = True) -> Storage:
    client, options = s3
    if bucket not in {found["Name"] for found in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=locked)
    storage = open_storage(f"s3://{bucket}/below", options)
    return hold_objects(storage, options, mode=mode, keep_s=WEEK_S, now=lambda: NOW)


def retention(s3: S3, bucket: str, key: str) -> tuple[str, float]:
    found = s3[0].head_object(Bucket=bucket, Key=key)
    return found["ObjectLockMode"], found["ObjectLockRetainUntilDate"].timestamp()


@pytest.mark.parametrize("mode", ["governance", "compliance"])
def test_what_is_stored_is_held_and_its_version_is_not_deleted(s3: S3, mode: str) -> None:
    bucket = f"locked-{mode}"
    storage = holding(s3, bucket, mode)
    storage.create("w/audit/segment", b"records")
    held, until = retention(s3, bucket, "below/w/audit/segment")
    assert held == mode.upper()
    assert abs(until - NOW - WEEK_S) < 2
    version = s3[0].head_object(Bucket=bucket, Key="below/w/audit/segment")["VersionId"]
    with pytest.raises(ClientError, match="AccessDenied"):
        s3[0].delete_object(Bucket=bucket, Key="below/w/audit/segment", VersionId=version)
    assert storage.get("w/audit/segment") == b"records"


def test_what_was_stored_before_a_crash_is_held_by_the_next_try(s3: S3) -> None:
    storage = holding(s3, "crashed")
    open_storage("s3://crashed/below", s3[1]).create("a", b"first")
    with pytest.raises(ObjectExistsError):
        storage.create("a", b"again")
    assert retention(s3, "crashed", "below/a")[0] == "GOVERNANCE"
    assert storage.get("a") == b"first"


@pytest.fixture
def no_retention(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From now on the store refuses every retention, and answers all else."""
    asked = BaseClient._make_api_call

    def answer(client: BaseClient, operation: str, given: dict[str, object]) -> object:
        if operation == "PutObjectRetention":
            raise ClientError({"Error": {"Code": "AccessDenied"}}, operation)
        return asked(client, operation, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    return monkeypatch


@pytest.mark.parametrize(
    ("mode", "held_mode", "held_s"),
    [
        ("governance", "GOVERNANCE", 3 * WEEK_S),
        ("governance", "COMPLIANCE", 3 * WEEK_S),
        ("compliance", "COMPLIANCE", 3 * WEEK_S),
        ("governance", "GOVERNANCE", WEEK_S / 2),
    ],
)
def test_what_is_held_already_is_named_with_its_end_and_is_no_failure(
    s3: S3, no_retention: pytest.MonkeyPatch, mode: str, held_mode: str, held_s: float
) -> None:
    """As S3 does with a retention that is longer than the one asked for."""
    bucket = f"held-{mode}-{held_mode}-{int(held_s)}".lower()
    storage = holding(s3, bucket, mode)
    until = datetime.fromtimestamp(NOW + held_s, UTC)
    retained = {"ObjectLockMode": held_mode, "ObjectLockRetainUntilDate": until}
    s3[0].put_object(Bucket=bucket, Key="below/a", Body=b"first", ContentMD5=MD5, **retained)
    with pytest.raises(ObjectExistsError):
        storage.create("a", b"first")
    assert isinstance(storage, HoldingStorage)
    [note] = storage.notes
    assert note.startswith(f"a is held until {until:%Y-%m-%dT%H:%M}")
    assert f"({held_mode.lower()})" in note
    assert abs(retention(s3, bucket, "below/a")[1] - NOW - held_s) < 2


def test_what_is_there_and_not_held_is_named_where_it_cannot_be(
    s3: S3, no_retention: pytest.MonkeyPatch
) -> None:
    storage = holding(s3, "unheld")
    open_storage("s3://unheld/below", s3[1]).create("a", b"first")
    with pytest.raises(StorageError, match="a is there and not held in s3://unheld") as error:
        storage.create("a", b"first")
    assert not isinstance(error.value, ObjectExistsError)
    no_retention.undo()
    with pytest.raises(ObjectExistsError):
        storage.create("a", b"first")
    assert retention(s3, "unheld", "below/a")[0] == "GOVERNANCE"


def test_what_is_held_less_strictly_than_asked_is_a_failure_until_it_is_held(
    s3: S3, no_retention: pytest.MonkeyPatch
) -> None:
    until = datetime.fromtimestamp(NOW + 3 * WEEK_S, UTC)
    retained = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
    storage = holding(s3, "lenient", "compliance")
    s3[0].put_object(Bucket="lenient", Key="below/a", Body=b"first", ContentMD5=MD5, **retained)
    with pytest.raises(StorageError, match=r"a is held until .* \(governance\)"):
        storage.create("a", b"first")
    no_retention.undo()
    with pytest.raises(ObjectExistsError):
        storage.create("a", b"first")
    mode, end = retention(s3, "lenient", "below/a")
    assert (mode, abs(end - until.timestamp()) < 2) == ("COMPLIANCE", True)


@pytest.mark.parametrize(("held_s", "then_s"), [(3 * WEEK_S, 3 * WEEK_S), (60.0, WEEK_S)])
def test_nothing_is_held_shorter_or_less_strictly_than_it_is(
    s3: S3, held_s: float, then_s: float
) -> None:
    """A store that would let it be, as this one does."""
    bucket = f"longer-{int(held_s)}"
    storage = holding(s3, bucket)
    until = datetime.fromtimestamp(NOW + held_s, UTC)
    retained = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until}
    s3[0].put_object(Bucket=bucket, Key="below/a", Body=b"first", ContentMD5=MD5, **retained)
    with pytest.raises(ObjectExistsError):
        storage.create("a", b"first")
    mode, end = retention(s3, bucket, "below/a")
    assert (mode, abs(end - NOW - then_s) < 2) == ("COMPLIANCE", True)


def test_without_object_lock_in_the_bucket_it_is_stored_as_ever(s3: S3) -> None:
    storage = holding(s3, "plain", locked=False)
    storage.create("a", b"first")
    assert storage.get("a") == b"first"
    assert "ObjectLockMode" not in s3[0].head_object(Bucket="plain", Key="below/a")


def test_a_default_retention_of_the_bucket_is_left_alone(s3: S3) -> None:
    s3[0].create_bucket(Bucket="default", ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    s3[0].put_object_lock_configuration(
        Bucket="default",
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
    )
    storage = holding(s3, "default")
    assert isinstance(storage, HoldingStorage)
    assert not storage.offered


def test_compliance_stores_nothing_in_a_bucket_without_object_lock(s3: S3) -> None:
    storage = holding(s3, "lockless", "compliance", locked=False)
    with pytest.raises(StorageError, match="lockless has no Object Lock") as error:
        storage.create("a", b"first")
    assert "Enable Object Lock" in (error.value.hint or "")
    with pytest.raises(ObjectMissingError):
        storage.get("a")


def test_compliance_is_refused_where_storage_is_not_s3(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}")
    with pytest.raises(StorageError, match="is not S3"):
        hold_objects(storage, {}, mode="compliance", keep_s=WEEK_S, now=lambda: NOW)
    assert hold_objects(storage, {}, mode="governance", keep_s=WEEK_S, now=lambda: NOW) is storage


@pytest.mark.parametrize(
    ("mode", "time", "enough"),
    [
        ("GOVERNANCE", {"Years": 1}, False),
        ("COMPLIANCE", {"Days": 6}, False),
        ("COMPLIANCE", {"Days": 7}, True),
        ("COMPLIANCE", {"Years": 1}, True),
    ],
)
def test_compliance_takes_a_default_of_the_bucket_only_where_it_holds_as_long(
    s3: S3, mode: str, time: dict[str, int], enough: bool
) -> None:
    bucket = f"default-{mode.lower()}-{'-'.join(f'{n}{unit.lower()}' for unit, n in time.items())}"
    storage = holding(s3, bucket, "compliance")
    s3[0].put_object_lock_configuration(
        Bucket=bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": mode, **time}},
        },
    )
    assert isinstance(storage, HoldingStorage)
    if enough:
        assert not storage.offered
        return
    with pytest.raises(StorageError, match="default retention of its own"):
        storage.create("a", b"first")
    with pytest.raises(ObjectMissingError):
        storage.get("a")


def test_a_bucket_that_cannot_be_asked_gets_nothing_that_would_not_be_held(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = holding(s3, "silent")

    def fail(*_: object, **__: object) -> None:
        raise ConnectTimeoutError(endpoint_url="silent")

    with monkeypatch.context() as away:
        away.setattr("botocore.client.BaseClient._make_api_call", fail)
        with pytest.raises(StorageError, match="cannot be asked for Object Lock") as error:
            storage.create("a", b"first")
        assert "object_lock" not in (error.value.hint or "storage.object_lock")
    with pytest.raises(ObjectMissingError):
        storage.get("a")
    storage.create("a", b"first")
    assert retention(s3, "silent", "below/a")[0] == "GOVERNANCE"


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        ("AccessDenied", "Allow s3:GetObject and s3:PutObjectRetention"),
        ("InvalidAccessKeyId", "storage.options, or AWS_ENDPOINT"),
        ("SlowDown", "storage.options, or AWS_ENDPOINT"),
    ],
)
def test_what_cannot_be_held_is_said_with_what_would_help(
    s3: S3, monkeypatch: pytest.MonkeyPatch, code: str, begins: str
) -> None:
    storage = holding(s3, f"refused-{code.lower()}")
    storage.create("before", b"first")

    def refuse(*_: object, **__: object) -> None:
        raise ClientError({"Error": {"Code": code}}, "PutObjectRetention")

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)
    with pytest.raises(StorageError, match="its retention cannot be set") as error:
        storage.create("a", b"first")
    hint = error.value.hint or ""
    assert hint.startswith(begins)
    assert ("object_lock" in hint) == (code == "AccessDenied"), "off is no cure for a bad key"


@pytest.mark.parametrize(("setting", "held"), [("", True), ('object_lock = "off"', False)])
def test_the_collector_holds_what_it_stores(
    s3: S3, tmp_path: Path, setting: str, held: bool
) -> None:
    bucket = f"collected-{'held' if held else 'free'}"
    s3[0].create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    options = "".join(f'{name} = "{value}"\n' for name, value in s3[1].items())
    (tmp_path / "d").mkdir(mode=0o700)
    file = tmp_path / "kvrun.toml"
    file.write_text(
        f'[instance]\ndata_dir = "{tmp_path}/d"\n[audit]\nretention_days = 30\n'
        f'[storage]\nurl = "s3://{bucket}"\n{setting}\n[storage.options]\n{options}'
    )
    plane = ControlPlane(load_config(file, {}), lambda: NOW)
    with plane.hold():
        plane.collector().storage.create("segment", b"records")
    if held:
        assert abs(retention(s3, bucket, "segment")[1] - NOW - 30 * 86_400) < 2
    else:
        with pytest.raises(KeyError):
            retention(s3, bucket, "segment")
