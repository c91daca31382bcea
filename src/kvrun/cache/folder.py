"""Files of sealed blocks under one root folder: one file a block.

``kv/<tenant_ref>/<session_ref>/<name as hex>.kvs``, folders 0700, files 0600. A file appears only
complete (written under a temporary name, then renamed), and what does not look like one of our
files is never read or counted. A session's folder that is to go is moved to ``outgoing`` first,
where nothing is read, and is emptied there.
"""

import errno
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvrun.cache.errors import CacheFolderError
from kvrun.cache.foldertree import DIR_FLAGS, FolderTree
from kvrun.cache.unlinking import Unlinker
from kvrun.directread import read_file

_FILE = re.compile(r"([0-9a-f]{32})\.kvs")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.[0-9]+\.tmp")
_BLOCKS = "kv"
_QUARANTINE = "quarantine"
_OUTGOING = "outgoing"
_AT_ONCE = 128
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_MOVED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EMLINK, errno.EXDEV, *_NO_ROOM)


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One file found by listing: name, bytes, time of last change in seconds since 1970."""

    name: bytes
    size: int
    changed: float


@dataclass(frozen=True, slots=True)
class FolderTotal:
    """How many blocks a session has, their bytes, and their last change in seconds since 1970."""

    blocks: int
    bytes: int
    changed: float


_NOTHING = FolderTotal(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class FolderDrop:
    """What a removed folder held, and how many files could not be removed."""

    blocks: int
    bytes: int
    failed: int


class BlockFolder:
    """The file operations of the disk tier. Safe to use from several threads."""

    def __init__(self, root: Path, *, direct: bool = True) -> None:
        """Makes or checks ``root``. Raises CacheFolderError when it cannot be used.

        Unless ``direct`` is off, large blocks are read past the system's page cache.
        """
        self.root = root
        self._direct = direct
        self._counter = itertools.count()
        hint = "it must be a folder that this user can read and write, not a link"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root_fd = os.open(root, DIR_FLAGS)
        except OSError as error:
            raise CacheFolderError(
                f"cannot open the cache folder {root}: {error.strerror}", hint=hint
            ) from error
        self._tree = FolderTree(self._root_fd)
        self._unlinker = Unlinker()
        try:
            os.fchmod(self._root_fd, 0o700)
            for area in (_BLOCKS, _QUARANTINE, _OUTGOING):
                with _unless_full():
                    self._tree.make_area(area)
            self._probe()
        except OSError as error:
            os.close(self._root_fd)
            raise CacheFolderError(
                f"cannot use the cache folder {root}: {error.strerror}", hint=hint
            ) from error

    def close(self) -> None:
        """Waits for what is being removed, and gives the descriptor of the root back."""
        self._unlinker.close()
        os.close(self._root_fd)

    def write(self, tenant_ref: str, session_ref: str, name: bytes, data: memoryview) -> None:
        """Writes one block so that it appears complete or not at all. Raises OSError."""
        for attempt in (1, 2):
            try:
                with self._tree.session(_BLOCKS, tenant_ref, session_ref, create=True) as folder:
                    self._write_in(folder, name, data)
                return
            except FileNotFoundError:
                # The folder was removed as empty between its creation and its use.
                if attempt == 2:
                    raise

    def read_into(self, tenant_ref: str, session_ref: str, name: bytes, out: memoryview) -> int:
        """Reads at most ``len(out)`` bytes of a block's file; returns how many. Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._tree.session(_BLOCKS, tenant_ref, session_ref) as folder:
            file = os.open(_file_name(name), flags, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{_file_name(name)} is not a regular file")
            return read_file(file, out, direct=self._direct)
        finally:
            os.close(file)

    def remove(self, tenant_ref: str, session_ref: str, name: bytes) -> bool:
        """Removes one block's file; False when it was not there. Raises OSError."""
        try:
            with self._tree.session(_BLOCKS, tenant_ref, session_ref) as folder:
                os.unlink(_file_name(name), dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def remove_all(self, tenant_ref: str, session_ref: str, names: Iterable[bytes]) -> None:
        """Removes the files of many blocks, those that are there. Raises OSError at the end."""
        failed: OSError | None = None
        try:
            with self._tree.session(_BLOCKS, tenant_ref, session_ref) as folder:
                for name in names:
                    try:
                        os.unlink(_file_name(name), dir_fd=folder)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        failed = error
        except FileNotFoundError:
            return
        if failed is not None:
            raise failed

    def quarantine(self, tenant_ref: str, session_ref: str, name: bytes) -> bool:
        """Moves one block's file aside; False when it was not there. Raises OSError."""
        file = _file_name(name)
        try:
            with (
                self._tree.session(_BLOCKS, tenant_ref, session_ref) as source,
                self._tree.session(_QUARANTINE, tenant_ref, session_ref, create=True) as target,
            ):
                os.rename(file, file, src_dir_fd=source, dst_dir_fd=target)
        except FileNotFoundError:
            return False
        return True

    def blocks(self, tenant_ref: str, session_ref: str) -> list[BlockFile]:
        """The blocks of one session, oldest change first. Anything else there is ignored."""
        try:
            with self._tree.session(_BLOCKS, tenant_ref, session_ref) as folder:
                found = list(_block_files(folder))
        except FileNotFoundError:
            return []
        found.sort(key=lambda file: file.changed)
        return found

    def held(self, tenant_ref: str, session_ref: str) -> tuple[int, int]:
        """Blocks and bytes that a session has here, those too that are on their way out."""
        files = self.blocks(tenant_ref, session_ref)
        leaves = self.measure_outgoing(tenant_ref, session_ref)
        return len(files) + leaves.blocks, sum(file.size for file in files) + leaves.bytes

    def survey(
        self, tenant_ref: str, session_ref: str, pause: Callable[[], None] = lambda: None
    ) -> FolderTotal:
        """What ``blocks`` would list, added up, and removes what an interrupted write left.

        A start does this for every session, before the first write. ``pause`` is called every few
        files. Raises OSError.
        """
        return self._survey(_BLOCKS, tenant_ref, session_ref, pause)

    def sessions(self) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) that has a folder."""
        return list(self._tree.sessions(_BLOCKS))

    def quarantined(self) -> int:
        """How many files stand in quarantine."""
        total = 0
        for tenant_ref, session_ref in list(self._tree.sessions(_QUARANTINE)):
            with (
                suppress(OSError),
                self._tree.session(_QUARANTINE, tenant_ref, session_ref) as folder,
            ):
                total += sum(1 for _ in _block_files(folder))
        return total

    def set_aside(self, tenant_ref: str, session_ref: str) -> bool:
        """Moves a session's folder to ``outgoing`` in one step: nobody finds a block of it again.

        False where the session has no folder, an older one of it is still there, or the disk has
        no room for that. Raises OSError.
        """
        try:
            with (
                self._tree.tenant(_BLOCKS, tenant_ref) as source,
                self._tree.tenant(_OUTGOING, tenant_ref, create=True) as target,
            ):
                os.rename(session_ref, session_ref, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            if error.errno in _NOT_MOVED:
                return False
            raise
        self._tree.remove_empty(_BLOCKS, tenant_ref, session_ref)
        return True

    def outgoing(self) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) with a folder that was moved aside."""
        return list(self._tree.sessions(_OUTGOING))

    def measure_outgoing(
        self, tenant_ref: str, session_ref: str, pause: Callable[[], None] = lambda: None
    ) -> FolderTotal:
        """What is left of a session's folder that was moved aside; nothing where it has none.

        ``pause`` is called every few files.
        """
        return self._survey(_OUTGOING, tenant_ref, session_ref, pause)

    def empty_outgoing(self, tenant_ref: str, session_ref: str) -> int:
        """Removes a folder that was moved aside; how many of its entries could not be removed.

        Raises OSError where the folder cannot be opened.
        """
        return self._empty(_OUTGOING, tenant_ref, session_ref)

    def empty_in_place(self, tenant_ref: str, session_ref: str) -> int:
        """The same of a session's own folder, which could not be moved."""
        return self._empty(_BLOCKS, tenant_ref, session_ref)

    def empty_quarantine(self, tenant_ref: str, session_ref: str) -> int:
        """The same of what a session has in quarantine."""
        return self._empty(_QUARANTINE, tenant_ref, session_ref)

    def drop(self, tenant_ref: str, session_ref: str) -> FolderDrop:
        """Removes every file of a session, whatever its name and wherever it was moved, and its
        emptied folders."""
        blocks = size = failed = 0
        for area in (_BLOCKS, _QUARANTINE, _OUTGOING):
            try:
                found = self._survey(area, tenant_ref, session_ref)
                left = self._empty(area, tenant_ref, session_ref)
                rest = self._survey(area, tenant_ref, session_ref) if left else _NOTHING
            except OSError:
                failed += 1
                continue
            blocks += found.blocks - rest.blocks
            size += found.bytes - rest.bytes
            failed += left
        return FolderDrop(blocks, size, failed)

    def remove_empty(self, tenant_ref: str, session_ref: str) -> None:
        """Removes the session's folder, and its tenant's, where nothing is left in them."""
        self._tree.remove_empty(_BLOCKS, tenant_ref, session_ref)

    def mark_used(self, tenant_ref: str, session_ref: str) -> None:
        """Remembers over restarts that the session was used now (the folder's time)."""
        with suppress(OSError), self._tree.session(_BLOCKS, tenant_ref, session_ref) as folder:
            os.utime(folder)

    def _survey(
        self, area: str, tenant_ref: str, session_ref: str, pause: Callable[[], None] = lambda: None
    ) -> FolderTotal:
        try:
            with self._tree.session(area, tenant_ref, session_ref) as folder:
                return _survey(folder, pause)
        except FileNotFoundError:
            return _NOTHING

    def _empty(self, area: str, tenant_ref: str, session_ref: str) -> int:
        try:
            with self._tree.session(area, tenant_ref, session_ref) as folder:
                failed = self._unlinker.empty(folder)
        except FileNotFoundError:
            return 0
        self._tree.remove_empty(area, tenant_ref, session_ref)
        return failed

    def _probe(self) -> None:
        name = f".{bytes(16).hex()}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with _unless_full():
            os.close(os.open(name, flags, 0o600, dir_fd=self._root_fd))
            os.unlink(name, dir_fd=self._root_fd)

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


@contextmanager
def _unless_full() -> Iterator[None]:
    """A full disk is no reason to refuse the start: it can still be read."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise


def _file_name(name: bytes) -> str:
    return f"{name.hex()}.kvs"


def _block_files(folder: int) -> Iterator[BlockFile]:
    for name, status in _statuses(folder):
        yield BlockFile(bytes.fromhex(name), status.st_size, status.st_mtime)


def _survey(folder: int, pause: Callable[[], None]) -> FolderTotal:
    """One pass over what may be a million files, so every step in it counts."""
    blocks = size = 0
    changed = 0.0
    is_block, regular = _FILE.fullmatch, stat.S_IFREG
    unfinished = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number % _AT_ONCE == _AT_ONCE - 1:
                pause()
            name = entry.name
            if not is_block(name):
                if _TEMPORARY.fullmatch(name):
                    unfinished.append(name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if status.st_mode & 0o170000 == regular:
                blocks += 1
                size += status.st_size
                if status.st_mtime > changed:
                    changed = status.st_mtime
    for name in unfinished:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
    return FolderTotal(blocks, size, changed)


def _statuses(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """The name in hexadecimal and the status of each block's file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if not match:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield match[1], status
