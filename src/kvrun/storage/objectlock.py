"""S3 Object Lock: a retention for each object that is stored, where the bucket offers it.

obstore cannot send the retention headers with a put, so the retention is set right after it, by
boto3 (``pip install 'kvrun[aws]'``). API: docs.aws.amazon.com/AmazonS3/latest/API,
PutObjectRetention, HeadObject and GetObjectLockConfiguration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore

from kvrun.storage.errors import ObjectExistsError, StorageError
from kvrun.storage.s3 import REACHING, s3_client
from kvrun.storage.store import Storage

_TIMEOUT_S = 10.0
_STRICT = "COMPLIANCE"
_ATTEMPTS = 3
_DAY_S = 86_400
_ALLOW = "Allow s3:GetBucketObjectLockConfiguration."
_ALLOW_RETENTION = (
    "Allow s3:GetObject and s3:PutObjectRetention in the bucket. Where nothing there need be held,"
    ' storage.object_lock = "off" says so.'
)
_log = logging.getLogger(__name__)


class HoldingStorage(Storage):
    """``storage``, but each object that is there after ``create`` is held by ``retention``, where
    the bucket ``offers`` that."""

    def __init__(self, storage: Storage, offers: Callable[[], bool], retention: _Retention) -> None:
        super().__init__(storage._store, storage.where)
        self._offers = cache(offers)
        self._retention = retention
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """What was there and stays held otherwise than asked, one text an object."""
        return tuple(self._notes)

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
            if offered and (
                note := self._retention.keep(name)
            ):  # a crash may have come between the two
                _log.warning("%s", note)
                self._notes.append(note)
            raise

    def _create(self, name: str, data: bytes | memoryview | Path) -> None:
        stored = obstore.put(self._store, name, data, mode="create", use_multipart=False)
        if self.offered:
            self._retention.hold(name, stored["version"])


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
    bucket forbids the question, nothing is held either. With ``compliance`` each of these is an
    error, but for a default retention that is compliance itself, for as long at least.

    Raises StorageError where it cannot work as asked.
    """
    place = urlsplit(storage.where)
    must = keep_s if mode == "compliance" else None
    if place.scheme not in ("s3", "s3a"):
        if must is not None:
            raise StorageError(
                f'storage.object_lock is "compliance", and {storage.where} is not S3',
                hint="storage.url = s3://BUCKET/PREFIX, or another storage.object_lock",
            )
        return storage
    if find_spec("boto3") is None:
        if must is not None:
            raise StorageError(
                'storage.object_lock is "compliance", and boto3 is not installed',
                hint="pip install 'kvrun[aws]'",
            )
        return storage
    bucket, prefix = place.netloc, place.path.strip("/")
    client = _asked(
        lambda: s3_client(bucket, options, timeout_s=_TIMEOUT_S, attempts=_ATTEMPTS),
        f"{storage.where} cannot be reached for Object Lock",
    )

    retention = _Retention(client, bucket, prefix, mode.upper(), keep_s, now)
    return HoldingStorage(storage, lambda: _is_offered(client, bucket, must=must), retention)


@dataclass(frozen=True, slots=True)
class _Held:
    """An object's retention, ``mode`` as S3 names it."""

    mode: str
    until: datetime

    def __str__(self) -> str:
        return f"held until {self.until:%Y-%m-%dT%H:%M:%SZ} ({self.mode.lower()})"


@dataclass(frozen=True, slots=True)
class _Retention:
    """Holds objects below ``prefix`` for ``keep_s`` from now on. ``mode`` as S3 names it."""

    client: Any
    bucket: str
    prefix: str
    mode: str
    keep_s: float
    now: Callable[[], float]

    def hold(self, name: str, version: str | None) -> None:
        """Hold one version of what is stored. Raises StorageError."""
        self._hold(name, _Held(self.mode, self._until), "is stored", version)

    def keep(self, name: str) -> str:
        """Hold what is there already. In words where it stays held for another time than this.

        Nothing is held shorter or less strictly than it is. Raises StorageError where it is not
        held as strictly as it should be, and cannot be.
        """
        asked, held = _Held(self.mode, self._until), self._held(name)
        if held is None or held.until <= _moment(self.now()):
            self._hold(name, asked, "is there and not held")
            return ""
        strict = held.mode in (self.mode, _STRICT)
        if strict and held.until >= asked.until:
            return f"{name} is {held}" if held.until > asked.until else ""
        wanted = _Held(held.mode if strict else self.mode, max(held.until, asked.until))
        try:
            self._hold(name, wanted, f"is {held}")
        except StorageError as error:
            if not strict:
                raise
            return error.message
        return ""

    def _hold(self, name: str, held: _Held, what: str, version: str | None = None) -> None:
        which = {"VersionId": version} if version else {}
        retention = {"Mode": held.mode, "RetainUntilDate": held.until}
        _asked(
            lambda: self.client.put_object_retention(
                Bucket=self.bucket, Key=self._key(name), Retention=retention, **which
            ),
            f"{name} {what} in s3://{self.bucket}, and its retention cannot be set",
        )

    @property
    def _until(self) -> datetime:
        return _moment(self.now() + self.keep_s)

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _held(self, name: str) -> _Held | None:
        """None where nothing holds it, or where we may not know (s3:GetObjectRetention)."""
        found = _asked(
            lambda: self.client.head_object(Bucket=self.bucket, Key=self._key(name)),
            f"{name} in s3://{self.bucket} cannot be looked at",
        )
        if "ObjectLockRetainUntilDate" not in found:
            return None
        return _Held(found["ObjectLockMode"], found["ObjectLockRetainUntilDate"].astimezone(UTC))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds), UTC)


def _is_offered(client: Any, bucket: str, *, must: float | None) -> bool:
    """``must``: for how many seconds nobody may be able to delete; None where somebody may."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        found = client.get_object_lock_configuration(Bucket=bucket)["ObjectLockConfiguration"]
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _NOT_THERE:
            return _no_lock(bucket, must)
        what = f"the bucket {bucket} does not say whether it has Object Lock ({code})"
        if must is not None:
            raise StorageError(what, hint=_ALLOW) from None
        _log.warning("%s: what is stored there is not held. %s", what, _ALLOW)
        return False
    except BotoCoreError as error:
        message = f"the bucket {bucket} cannot be asked for Object Lock: {error}"
        raise StorageError(message, hint=REACHING) from None
    if found.get("ObjectLockEnabled") != "Enabled":
        return _no_lock(bucket, must)
    if "Rule" not in found:
        return True
    rule = found["Rule"].get("DefaultRetention", {})
    kept_s = (rule.get("Days", 0) + 365 * rule.get("Years", 0)) * _DAY_S
    if must is not None and (rule.get("Mode") != _STRICT or kept_s < must):
        held = f"{str(rule.get('Mode')).lower()} for {kept_s / _DAY_S:g} days"
        raise StorageError(
            f'storage.object_lock is "compliance" for {must / _DAY_S:g} days, and the bucket'
            f" {bucket} has a default retention of its own, {held}",
            hint="Make the bucket's default compliance for as long at least, or remove it.",
        )
    return False


def _no_lock(bucket: str, must: float | None) -> bool:
    if must is not None:
        raise StorageError(
            f'storage.object_lock is "compliance", and the bucket {bucket} has no Object Lock',
            hint='Enable Object Lock for the bucket, or set storage.object_lock = "governance".',
        )
    return False


_NOT_THERE = (
    "ObjectLockConfigurationNotFoundError",
    "NotImplemented",
    "NoSuchObjectLockConfiguration",
)
_DENIED = ("403", "AccessDenied", "AllAccessDisabled", "MethodNotAllowed", "NotImplemented")
"""Codes of a store that knows who asks, and does not let them look or set a retention."""


def _asked(call: Callable[[], Any], what: str) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except ClientError as error:
        denied = error.response.get("Error", {}).get("Code", "") in _DENIED
        hint = _ALLOW_RETENTION if denied else REACHING
        raise StorageError(f"{what}: {error}", hint=hint) from None
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"{what}: {error}", hint=REACHING) from None
