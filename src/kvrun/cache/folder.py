"""Files of sealed blocks under one root folder: one file a block.

``kv/<tenant_ref>/<session_ref>/<name as hex>.kvs``, folders 0700, files 0600. Every step down the
tree refuses symbolic links, a file appears only complete (written under a temporary name, then
renamed), and what does not look like one of our files is never read or counted.
"""

import errno
import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvrun.cache.errors import CacheFolderError

_FILE = re.compile(r"([0-9a-f]{32})\.kvs")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.[0-9]+\.tmp")
_REF = re.compile(r"[A-Za-z0-9_-]{1,128}")
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCKS = "kv"
_QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One file found by listing: name, bytes, time of last change in seconds since 1970."""

    name: bytes
    size: int
    changed: float


@dataclass(frozen=True, slots=True)
class FolderDrop:
    """What a removed folder held, and how many files could not be removed."""

    blocks: int
    bytes: int
    failed: int


class BlockFolder:
    """The file operations of the disk tier. Safe to use from several threads."""

    def __init__(self, root: Path) -> None:
        """Makes or checks ``root``. Raises CacheFolderError when it cannot be used."""
        self.root = root
        self._counter = itertools.count()
        hint = "it must be a folder that this user can read and write, not a link"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root_fd = os.open(root, _DIR_FLAGS)
        except OSError as error:
            raise CacheFolderError(
                f"cannot open the cache folder {root}: {error.strerror}", hint=hint
            ) from error
        try:
            os.fchmod(self._root_fd, 0o700)
            for area in (_BLOCKS, _QUARANTINE):
                os.close(_descend(self._root_fd, area, create=True))
            self._probe()
        except OSError as error:
            os.close(self._root_fd)
            raise CacheFolderError(
                f"cannot use the cache folder {root}: {error.strerror}", hint=hint
            ) from error

    def close(self) -> None:
        """Gives the descriptor of the root back."""
        os.close(self._root_fd)

    def write(self, tenant_ref: str, session_ref: str, name: bytes, data: memoryview) -> None:
        """Writes one block so that it appears complete or not at all. Raises OSError."""
        for attempt in (1, 2):
            try:
                with self._session(_BLOCKS, tenant_ref, session_ref, create=True) as folder:
                    self._write_in(folder, name, data)
                return
            except FileNotFoundError:
                # The folder was removed as empty between its creation and its use.
                if attempt == 2:
                    raise

    def read_into(self, tenant_ref: str, session_ref: str, name: bytes, out: memoryview) -> int:
        """Reads at most ``len(out)`` bytes of a block's file; returns how many. Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._session(_BLOCKS, tenant_ref, session_ref) as folder:
            file = os.open(_file_name(name), flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{_file_name(name)} is not a regular file")
            done = 0
            while done < len(out):
                count = os.preadv(file, [out[done:]], done)
                if not count:
                    break
                done += count
            return done
        finally:
            os.close(file)

    def remove(self, tenant_ref: str, session_ref: str, name: bytes) -> bool:
        """Removes one block's file; False when it was not there. Raises OSError."""
        try:
            with self._session(_BLOCKS, tenant_ref, session_ref) as folder:
                os.unlink(_file_name(name), dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def quarantine(self, tenant_ref: str, session_ref: str, name: bytes) -> bool:
        """Moves one block's file aside; False when it was not there. Raises OSError."""
        file = _file_name(name)
        try:
            with (
                self._session(_BLOCKS, tenant_ref, session_ref) as source,
                self._session(_QUARANTINE, tenant_ref, session_ref, create=True) as target,
            ):
                os.rename(file, file, src_dir_fd=source, dst_dir_fd=target)
        except FileNotFoundError:
            return False
        return True

    def blocks(self, tenant_ref: str, session_ref: str) -> list[BlockFile]:
        """The blocks of one session, oldest change first. Anything else there is ignored."""
        try:
            with self._session(_BLOCKS, tenant_ref, session_ref) as folder:
                found = list(_block_files(folder))
        except FileNotFoundError:
            return []
        found.sort(key=lambda file: file.changed)
        return found

    def sessions(self) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) that has a folder."""
        return list(self._sessions_in(_BLOCKS))

    def quarantined(self) -> int:
        """How many files stand in quarantine."""
        total = 0
        for tenant_ref, session_ref in list(self._sessions_in(_QUARANTINE)):
            with (
                suppress(OSError),
                self._session(_QUARANTINE, tenant_ref, session_ref) as folder,
            ):
                total += sum(1 for _ in _block_files(folder))
        return total

    def remove_temporaries(self, tenant_ref: str, session_ref: str) -> None:
        """Removes what an interrupted write left. No write may be under way."""
        with suppress(OSError), self._session(_BLOCKS, tenant_ref, session_ref) as folder:
            for entry in _entries(folder):
                if _TEMPORARY.fullmatch(entry):
                    os.unlink(entry, dir_fd=folder)

    def drop(self, tenant_ref: str, session_ref: str) -> FolderDrop:
        """Removes every file of a session, quarantined ones too, and its emptied folders."""
        blocks = size = failed = 0
        for area in (_BLOCKS, _QUARANTINE):
            try:
                with self._session(area, tenant_ref, session_ref) as folder:
                    removed = _remove_all(folder)
            except FileNotFoundError:
                continue
            except OSError:
                failed += 1
                continue
            blocks += removed.blocks
            size += removed.bytes
            failed += removed.failed
            self._remove_empty(area, tenant_ref, session_ref)
        return FolderDrop(blocks, size, failed)

    def remove_empty(self, tenant_ref: str, session_ref: str) -> None:
        """Removes the session's folder, and its tenant's, where nothing is left in them."""
        self._remove_empty(_BLOCKS, tenant_ref, session_ref)

    def mark_used(self, tenant_ref: str, session_ref: str) -> None:
        """Remembers over restarts that the session was used now (the folder's time)."""
        with suppress(OSError), self._session(_BLOCKS, tenant_ref, session_ref) as folder:
            os.utime(folder)

    def _probe(self) -> None:
        name = f".{bytes(16).hex()}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(name, flags, 0o600, dir_fd=self._root_fd))
            os.unlink(name, dir_fd=self._root_fd)
        except OSError as error:
            # A full disk is no reason to refuse the start: it can still be read.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _write_in(self, folder: int, name: bytes, data: memoryview) -> None:
        temporary = f".{name.hex()}.{next(self._counter)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            try:
                rest = data.cast("B")
                while rest:
                    rest = rest[os.write(file, rest) :]
            finally:
                os.close(file)
            os.rename(temporary, _file_name(name), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def _sessions_in(self, area: str) -> Iterator[tuple[str, str]]:
        for tenant_ref in _folders(self._root_fd, area):
            with suppress(OSError), _opened(_descend(self._root_fd, area)) as above:
                for session_ref in _folders(above, tenant_ref):
                    yield tenant_ref, session_ref

    def _remove_empty(self, area: str, tenant_ref: str, session_ref: str) -> None:
        with suppress(OSError), _opened(_descend(self._root_fd, area)) as above:
            with suppress(OSError), _opened(_descend(above, tenant_ref)) as tenant:
                os.rmdir(session_ref, dir_fd=tenant)
            os.rmdir(tenant_ref, dir_fd=above)

    @contextmanager
    def _session(
        self, area: str, tenant_ref: str, session_ref: str, *, create: bool = False
    ) -> Iterator[int]:
        with (
            _opened(_descend(self._root_fd, area, create=create)) as above,
            _opened(_descend(above, checked_ref(tenant_ref), create=create)) as tenant,
            _opened(_descend(tenant, checked_ref(session_ref), create=create)) as session,
        ):
            yield session


def checked_ref(ref: str) -> str:
    """``ref`` itself when it can be a folder's name. Raises ValueError otherwise."""
    if not _REF.fullmatch(ref):
        raise ValueError(f"{ref!r} is not a reference (1..128 of A-Z a-z 0-9 _ -)")
    return ref


def _file_name(name: bytes) -> str:
    return f"{name.hex()}.kvs"


def _descend(above: int, part: str, *, create: bool = False) -> int:
    try:
        return os.open(part, _DIR_FLAGS, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=above)
    return os.open(part, _DIR_FLAGS, dir_fd=above)


@contextmanager
def _opened(folder: int) -> Iterator[int]:
    try:
        yield folder
    finally:
        os.close(folder)


def _folders(above: int, part: str) -> list[str]:
    with suppress(OSError), _opened(_descend(above, part)) as folder, os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if _REF.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return []


def _entries(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _block_files(folder: int) -> Iterator[BlockFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if not match:
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield BlockFile(bytes.fromhex(match[1]), status.st_size, status.st_mtime)


def _remove_all(folder: int) -> FolderDrop:
    """Unlinks whatever stands in a session's folder: a renamed block is still the session's."""
    blocks = size = failed = 0
    sizes = {_file_name(file.name): file.size for file in _block_files(folder)}
    for entry in _entries(folder):
        try:
            os.unlink(entry, dir_fd=folder)
        except FileNotFoundError:
            continue
        except OSError:
            failed += 1
        else:
            blocks += entry in sizes
            size += sizes.get(entry, 0)
    return FolderDrop(blocks, size, failed)
