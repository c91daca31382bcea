"""Objects in a local folder or an object store: whole puts that never replace anything.

obstore (Rust ``object_store``) does the talking. Three things it does not do:

* Its local folder writes without a sync, so a power cut could leave an empty file under a name
  that counts as stored. Here a local object is synced before it gets its name, and its folder
  after.
* It reads a local object through the system's cache. Large parts are read past it here.
* It cannot send the retention headers of S3 Object Lock with a put: ``objectlock`` sets a
  retention after it. Puts carry a SHA-256 checksum, which S3 demands of puts into a bucket that
  sets one by itself.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, ObjectStore, from_url

from kvrun.directread import DIRECT_BYTES, read_part
from kvrun.durable import sync_folder
from kvrun.storage.errors import ObjectExistsError, ObjectMissingError, StorageError

MAX_OBJECT_BYTES = 5 * 2**30
"""The largest object that one put can make (the limit of S3)."""
_PART = re.compile(r"[A-Za-z0-9_%=@.-]+")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's name, its size in bytes and when it was stored, seconds since 1970."""

    name: str
    size_bytes: int
    modified_s: float = 0.0


class Storage:
    """Objects by name, such as ``a/b/c.jsonl``. Thread-safe. Made by :func:`open_storage`."""

    def __init__(self, store: ObjectStore, where: str) -> None:
        self._store = store
        self.where = where

    def create(self, name: str, data: bytes | memoryview | Path) -> None:
        """Store a new object whole, from memory or from a file; it is durable on return.

        Raises:
            ObjectExistsError: an object of that name is there; it is left as it is.
            StorageError: the store cannot be used, or the object is too large.
        """
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if size > MAX_OBJECT_BYTES:
            raise StorageError(
                f"{name} has {size} bytes; one put stores at most {MAX_OBJECT_BYTES}",
                hint="set audit.segment_bytes lower",
            )
        with self._speaking_of(name):
            self._create(check_name(name), data)

    def get(self, name: str) -> bytes:
        """A whole object. Raises ObjectMissingError or StorageError."""
        with self._speaking_of(name):
            return obstore.get(self._store, check_name(name)).bytes().to_bytes()

    def get_range(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of an object, shorter at its end. Raises ObjectMissingError or StorageError."""
        with self._speaking_of(name):
            found = obstore.head(self._store, check_name(name))
            length = max(0, min(size_bytes, found["size"] - offset))
            if not length:
                return b""
            part = obstore.get_range(self._store, name, start=offset, length=length)
            return part.to_bytes()

    def get_part(self, name: str, offset: int, size_bytes: int) -> memoryview:
        """A part of an object in one request, without a copy; shorter where the object ends.

        Raises ObjectMissingError, or StorageError, also for a part that begins beyond the end.
        """
        with self._speaking_of(name):
            part = obstore.get_range(self._store, check_name(name), start=offset, length=size_bytes)
            return memoryview(part)

    def find(self, name: str) -> StoredObject | None:
        """What is known of an object; None when there is none. Raises StorageError."""
        try:
            with self._speaking_of(name):
                return _described(obstore.head(self._store, check_name(name)))
        except ObjectMissingError:
            return None

    def list(self, folder: str) -> Iterator[StoredObject]:
        """The objects below a folder, in no order. Raises StorageError."""
        with self._speaking_of(folder):
            for batch in obstore.list(self._store, check_name(folder) + "/"):
                yield from map(_described, batch)

    def entries(self, folder: str) -> tuple[tuple[str, ...], tuple[StoredObject, ...]]:
        """What is directly in a folder: folders' names, then objects. Raises StorageError."""
        with self._speaking_of(folder):
            found = obstore.list_with_delimiter(self._store, check_name(folder) + "/")
            return tuple(found["common_prefixes"]), tuple(map(_described, found["objects"]))

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens when there is none. Raises StorageError."""
        try:
            with self._speaking_of(name):
                obstore.delete(self._store, check_name(name))
        except ObjectMissingError:
            return

    def _create(self, name: str, data: bytes | memoryview | Path) -> None:
        obstore.put(self._store, name, data, mode="create", use_multipart=False)

    @contextmanager
    def _speaking_of(self, name: str) -> Iterator[None]:
        try:
            yield
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            raise ObjectExistsError(f"{name} is stored already in {self.where}") from None
        except FileNotFoundError:
            raise ObjectMissingError(f"{self.where} has no {name}") from None
        except (BaseError, OSError) as error:
            reason = str(error).split("\n", 1)[0][:300]
            raise StorageError(
                f"Storage {self.where} cannot be used for {name}: {reason}",
                hint="storage.url and storage.options say where it is and how it is reached",
            ) from error


class _FolderStorage(Storage):
    """A local folder: 0700 folders, 0600 files, synced before they have a name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(LocalStore(folder), str(folder))
        self._folder = folder

    def get_part(self, name: str, offset: int, size_bytes: int) -> memoryview:
        """As from any store; a large part comes past the system's cache."""
        if size_bytes < DIRECT_BYTES:
            return super().get_part(name, offset, size_bytes)
        with self._speaking_of(name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self._folder / check_name(name), flags)
            try:
                part = read_part(file, offset, size_bytes)
            finally:
                os.close(file)
        if not part:
            raise StorageError(f"{name} in {self.where} ends before byte {offset}")
        return part

    def delete(self, name: str) -> None:
        """Delete an object, and the folders that are empty then."""
        super().delete(name)
        for folder in (self._folder / name).parents:
            if folder == self._folder:
                break
            try:
                folder.rmdir()
            except OSError:
                break

    def _create(self, name: str, data: bytes | memoryview | Path) -> None:
        path = self._folder / name
        made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        for folder in reversed(made):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder.parent)
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._create_in(parent, path, data)
            os.fsync(parent)
        finally:
            os.close(parent)

    def _create_in(self, folder: int, path: Path, data: bytes | memoryview | Path) -> None:
        """The file has no name before it is whole, so a crash leaves nothing behind."""
        flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
        try:
            descriptor = os.open(".", flags, 0o600, dir_fd=folder)
        except OSError:
            self._create_by_name(path, data)
            return
        with os.fdopen(descriptor, "wb") as file:
            _write_synced(file, data)
            # A link, unlike a rename, fails where the name is taken. With a folder given, Python
            # calls linkat(2), which follows the link to the file.
            nameless = f"/proc/self/fd/{descriptor}"
            os.link(nameless, path.name, dst_dir_fd=folder, follow_symlinks=True)

    def _create_by_name(self, path: Path, data: bytes | memoryview | Path) -> None:
        """For file systems without nameless files; a crash leaves one of another name."""
        # obstore never lists a name that ends in # and digits.
        temporary = path.with_name(f"{path.name}#{secrets.randbelow(10**18)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _write_synced(file, data)
            path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request to an object store may take, in seconds, and how often it is repeated
    after a failure that may pass, with a random pause before each."""

    request_s: float = 30.0
    connect_s: float = 5.0
    retries: int = 10
    retry_s: float = 180.0


def open_storage(
    url: str, options: Mapping[str, str] | None = None, patience: Patience | None = None
) -> Storage:
    """The Storage at ``url``: ``file:///FOLDER`` (made when missing), ``s3://BUCKET/PREFIX``, ...

    ``options`` are the store's own (``endpoint``, ``region``, ...). Nothing is asked of an object
    store yet. Raises StorageError for an address or an option that cannot be used.
    """
    try:
        if url.startswith("file:///"):
            return _FolderStorage(Path(url.removeprefix("file://")))
        # Which keys there are depends on the store, which knows them itself.
        config: Any = dict(options or {})
        client: Any = {}
        retry: Any = None
        if url.startswith("s3"):
            config.setdefault("checksum_algorithm", "SHA256")
        if config.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
        if patience is not None:
            client["timeout"] = timedelta(seconds=patience.request_s)
            client["connect_timeout"] = timedelta(seconds=patience.connect_s)
            retry = {
                "max_retries": patience.retries,
                "retry_timeout": timedelta(seconds=patience.retry_s),
            }
        store = from_url(url, config=config, client_options=client or None, retry_config=retry)
        return Storage(store, url)
    except (BaseError, OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"Storage {url} cannot be opened: {str(error).split(chr(10), 1)[0][:300]}",
            hint="storage.url and storage.options say where it is and how it is reached",
        ) from None


def check_name(name: str) -> str:
    """``name`` if it is one that every store spells alike, else StorageError."""
    parts = name.split("/")
    if any(not _PART.fullmatch(part) or set(part) <= {"."} for part in parts):
        raise StorageError(f"{name!r} cannot name an object in Storage")
    return name


def _described(found: Any) -> StoredObject:
    return StoredObject(found["path"], found["size"], found["last_modified"].timestamp())


def _write_synced(file: BinaryIO, data: bytes | memoryview | Path) -> None:
    for part in _parts(data):
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


def _parts(data: bytes | memoryview | Path) -> Iterator[bytes | memoryview]:
    if not isinstance(data, Path):
        yield data
        return
    with data.open("rb") as file:
        while part := file.read(1 << 20):
            yield part
