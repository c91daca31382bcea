"""API keys of a running gateway: looked up again when their file changed, replaced one by one."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kvrun.filelock import FileTakenError, hold_file
from kvrun.gateway.apikeys import (
    ApiKeyRecord,
    ApiKeys,
    hash_api_key,
    load_api_keys,
    make_api_key,
    save_api_keys,
)
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.identity import Principal

LOOK_EVERY_S = 1.0
_log = logging.getLogger(__name__)


class WatchedApiKeys(ApiKeys):
    """The keys in a file that others replace while it is used; a change counts a second later.

    A file that cannot be read any more, or is malformed, lets nobody in that was not let in before
    and keeps nobody out: the last good content stays, and the log says so. Raises
    GatewayConfigError when there is none to start from.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._seen = _identity(path)
        self._look_at = clock() + LOOK_EVERY_S
        super().__init__(load_api_keys(path))

    def authenticate(self, key: str, now: float) -> Principal:
        """Who holds this key. Raises GatewayError 401 without saying why."""
        if self._clock() >= self._look_at:
            self._look_again()
        return super().authenticate(key, now)

    def _look_again(self) -> None:
        self._look_at = self._clock() + LOOK_EVERY_S
        found = _identity(self._path)
        if found == self._seen:
            return
        self._seen = found
        try:
            super().__init__(load_api_keys(self._path))
        except GatewayConfigError as error:
            _log.error("the API keys as they were stay in use: %s", error.message)


def rotate_api_key(
    path: Path,
    key_id: str,
    *,
    now: int,
    overlap_s: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> tuple[ApiKeyRecord, str]:
    """A new key with the scopes and tenant of another; the record and the key's text, shown once.

    The other one is valid for ``overlap_s`` more. Raises GatewayConfigError.
    """
    with _changing(path) as records:
        old = _of(records, key_id, path)
        key = make_api_key(random_bytes(32))
        fresh = msgspec.structs.replace(
            old, id=_free_id(records, key_id), sha256=hash_api_key(key), expires_at=None
        )
        _end(records, old, now + overlap_s)
        records.append(fresh)
    return fresh, key


def put_api_keys(path: Path, fresh: Sequence[ApiKeyRecord]) -> None:
    """Put the control plane's keys in the place of those that it put there before.

    Its keys are known by their ids; all others stay. Raises GatewayConfigError, and the file is as
    it was then.
    """
    with _changing(path) as records:
        records[:] = [record for record in records if not _CONTROL_PLANE.fullmatch(record.id)]
        records += fresh
        if len({record.id for record in records}) < len(records):
            raise GatewayConfigError(f"api_keys_file {path} would hold a key id twice")


@contextmanager
def passing_api_key(
    path: Path,
    key_id: str,
    *,
    until: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Iterator[str]:
    """A key for inference that is in the file for as long as the block lasts; its text.

    ``until`` (seconds since 1970) ends it also where this process cannot. A running gateway knows
    it a second later. Raises GatewayConfigError.
    """
    key = make_api_key(random_bytes(32))
    with _changing(path) as records:
        records.append(ApiKeyRecord(id=key_id, sha256=hash_api_key(key), expires_at=until))
    try:
        yield key
    finally:
        with _changing(path) as records:
            records[:] = [record for record in records if record.id != key_id]


def revoke_api_key(path: Path, key_id: str, *, now: int) -> ApiKeyRecord:
    """End a key's validity now. Raises GatewayConfigError."""
    with _changing(path) as records:
        old = _of(records, key_id, path)
        _end(records, old, now)
    return _of(load_api_keys(path), key_id, path)


@contextmanager
def _changing(path: Path) -> Iterator[list[ApiKeyRecord]]:
    """The file's records, written back afterwards; one process at a time."""
    try:
        held = hold_file(path.with_name(path.name + ".lock"), str(os.getpid()))
    except FileTakenError as error:
        raise GatewayConfigError(
            f"api_keys_file {path} is being changed by process {error.holder}", hint="Try again."
        ) from None
    except OSError as error:
        raise GatewayConfigError(f"cannot change api_keys_file {path}: {error.strerror}") from None
    try:
        found = load_api_keys(path)
        records = list(found)
        yield records
        if records != found:
            save_api_keys(path, records)
    finally:
        os.close(held)


def _of(records: list[ApiKeyRecord], key_id: str, path: Path) -> ApiKeyRecord:
    for record in records:
        if record.id == key_id:
            return record
    known = ", ".join(record.id for record in records) or "none"
    raise GatewayConfigError(
        f"api_keys_file {path} holds no key {key_id!r}", hint=f"It holds: {known}."
    )


def _end(records: list[ApiKeyRecord], old: ApiKeyRecord, until: int) -> None:
    end = until if old.expires_at is None else min(old.expires_at, until)
    records[records.index(old)] = msgspec.structs.replace(old, expires_at=end)


def _free_id(records: list[ApiKeyRecord], key_id: str) -> str:
    base, _, number = key_id.rpartition("-")
    if not base or not number.isdigit():
        base = key_id
    taken = {record.id for record in records}
    return next(name for n in range(2, len(taken) + 3) if (name := f"{base}-{n}") not in taken)


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


_CONTROL_PLANE = re.compile(r"key-[a-z2-7]{16}")
"""Ids that the control plane makes."""
