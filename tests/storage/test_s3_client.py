"""boto3 asks the store that obstore writes to, wherever that is said; S3 is moto's server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from kvrun.instance.observing import NotObservedError, bucket_region
from kvrun.storage import hold_objects, open_storage
from kvrun.storage.s3 import s3_client
from support.s3_server import s3_server

NOW = datetime.now(UTC).timestamp()
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any]]:
    with s3_server() as (address, options):
        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint"],
            region_name="eu-central-1",
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )
        client.create_bucket(
            Bucket="held",
            ObjectLockEnabledForBucket=True,
            CreateBucketConfiguration={"LocationConstraint": "eu-central-1"},
        )
        yield f"http://{address}", client


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_alone_is_where_everything_is_asked(
    server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, scheme: str
) -> None:
    endpoint, client = server
    monkeypatch.setenv(name, endpoint)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    url, key = f"{scheme}://held/below", f"{name}-{scheme}"
    storage = hold_objects(
        open_storage(url), {}, mode="governance", keep_s=86_400.0, now=lambda: NOW
    )
    storage.create(key, b"records")
    assert client.head_object(Bucket="held", Key=f"below/{key}")["ObjectLockMode"] == "GOVERNANCE"
    assert bucket_region(url, {}) == "eu-central-1"


def test_options_go_before_the_environment(
    server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = server
    monkeypatch.setenv("AWS_ENDPOINT", NOBODY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    options = {"aws_endpoint_url": endpoint, "AWS_REGION": "eu-central-1"}
    assert bucket_region("s3://held", options) == "eu-central-1"
    with pytest.raises(NotObservedError, match="where the bucket is") as refused:
        bucket_region("s3://held", {"endpoint": NOBODY})
    assert "AWS_ENDPOINT" in (refused.value.hint or "")


def _asked_at(bucket: str, options: dict[str, str]) -> tuple[str | None, str]:
    """Host and path of a request for an object k."""
    client = s3_client(bucket, options, timeout_s=1.0, attempts=1)
    signed = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    return urlsplit(signed).hostname, urlsplit(signed).path


def test_the_bucket_is_where_obstore_puts_it_in_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = {"region": "eu-west-1", "virtual_hosted_style_request": "true"}
    assert _asked_at("held", {"endpoint": "https://s.test"}) == ("s.test", "/held/k")
    # obstore's endpoint has the bucket in it where requests are virtual-hosted.
    assert _asked_at("held", {"endpoint": "https://held.s.test", **inside}) == ("held.s.test", "/k")
    assert _asked_at("held", inside) == ("held.s3.eu-west-1.amazonaws.com", "/k")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    assert _asked_at("held", {"endpoint": "https://held.s.test"}) == ("held.s.test", "/k")
