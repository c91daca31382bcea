"""S3 Object Lock: a retention for each object that is stored, where the bucket offers it.

obstore cannot send the retention headers with a put, so the retention is set right after it, by
boto3 (``pip install 'kvrun[aws]'``). API: docs.aws.amazon.com/AmazonS3/latest/API,
PutObjectRetention and GetObjectLockConfiguration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore

from kvrun.storage.errors import ObjectExistsError, StorageError
from kvrun.storage.store import Storage

_TIMEOUT_S = 10.0
_ALLOW = "Allow s3:GetBucketObjectLockConfiguration."
_log = logging.getLogger(__name__)


class HoldingStorage(Storage):
    """``storage``, but each object that is there after ``create`` is held: ``hold(name, version)``,
    where the bucket ``offers`` that. ``version`` is None where only the newest is known."""

    def __init__(
        self, storage: Storage, offers: Callable[[], bool], hold: Callable[[str, str | None], None]
    ) -> None:
        super().__init__(storage._store, storage.where)
        self._offers = cache(offers)
        self._hold = hold

    @property
    def offered(self) -> bool:
        """Whether what is stored is held. Raises StorageError where the bucket does not answer."""
        return self._offers()

    def create(self, name: str, data: bytes | memoryview | Path) -> None:
        """See :class:`Storage`. Raises StorageError, too, where it is stored and not held, and
        where the bucket does not say whether it offers that: nothing is stored then."""
        offered = self.offered
        try:
            super().create(name, data)
        except ObjectExistsError:
            if offered:
                self._hold(name, None)  # a crash may have come between the two
            raise

    def _create(self, name: str, data: bytes | memoryview | Path) -> None:
        stored = obstore.put(self._store, name, data, mode="create", use_multipart=False)
        if self.offered:
            self._hold(name, stored["version"])


def hold_objects(
    storage: Storage,
    options: Mapping[str, str],
    *,
    mode: str,
    keep_s: float,
    now: Callable[[], float],
) -> Storage:
    """``storage``, whose objects are held for ``keep_s`` from when they are stored.

    ``mode``: governance or compliance. Nothing is held where the bucket has no Object Lock, or a
    default retention of its own; what is not S3 comes back as it is. Without boto3, or where the
    bucket forbids the question, nothing is held either, unless it is ``compliance``.

    Raises StorageError where it cannot work as asked.
    """
    place = urlsplit(storage.where)
    if place.scheme not in ("s3", "s3a"):
        return storage
    must = mode == "compliance"
    if find_spec("boto3") is None:
        if must:
            raise StorageError(
                'storage.object_lock is "compliance", and boto3 is not installed',
                hint="pip install 'kvrun[aws]'",
            )
        return storage
    bucket, prefix = place.netloc, place.path.strip("/")
    client = _asked(lambda: _client(options), f"{storage.where} cannot be reached for Object Lock")

    def hold(name: str, version: str | None) -> None:
        which = {"VersionId": version} if version else {}
        until = datetime.fromtimestamp(round(now() + keep_s), UTC)
        retention = {"Mode": mode.upper(), "RetainUntilDate": until}
        key = f"{prefix}/{name}" if prefix else name
        _asked(
            lambda: client.put_object_retention(
                Bucket=bucket, Key=key, Retention=retention, **which
            ),
            f"{name} is stored in {storage.where}, and its retention cannot be set",
        )

    return HoldingStorage(storage, lambda: _is_offered(client, bucket, must=must), hold)


def _is_offered(client: Any, bucket: str, *, must: bool) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        found = client.get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"]
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _NOT_THERE:
            return False
        what = f"the bucket {bucket} does not say whether it has Object Lock ({code})"
        if must:
            raise StorageError(what, hint=_ALLOW) from None
        _log.warning("%s: what is stored there is not held. %s", what, _ALLOW)
        return False
    except BotoCoreError as error:
        message = f"the bucket {bucket} cannot be asked for Object Lock: {error}"
        raise StorageError(message) from None
    return found.get("ObjectLockEnabled") == "Enabled" and "Rule" not in found


_NOT_THERE = (
    "ObjectLockConfigurationNotFoundError",
    "NotImplemented",
    "NoSuchObjectLockConfiguration",
)


def _asked(call: Callable[[], Any], what: str) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except (BotoCoreError, ClientError, ValueError) as error:
        raise StorageError(
            f"{what}: {error}",
            hint='Allow s3:PutObjectRetention, or set storage.object_lock = "off".',
        ) from None


def _client(options: Mapping[str, str]) -> Any:
    """A client for the store that obstore's options name; credentials as obstore has them."""
    import boto3
    from botocore.config import Config

    named = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    path_style = named.get("virtual_hosted_style_request", "false").lower() != "true"
    return boto3.client(
        "s3",
        endpoint_url=named.get("endpoint")
        or named.get("endpoint_url")
        or environ.get("AWS_ENDPOINT"),
        region_name=named.get("region") or named.get("default_region") or environ.get("AWS_REGION"),
        aws_access_key_id=named.get("access_key_id"),
        aws_secret_access_key=named.get("secret_access_key"),
        aws_session_token=named.get("session_token") or named.get("token"),
        config=Config(
            connect_timeout=_TIMEOUT_S,
            read_timeout=_TIMEOUT_S,
            retries={"total_max_attempts": 3, "mode": "standard"},
            s3={"addressing_style": "path" if path_style else "virtual"},
        ),
    )
