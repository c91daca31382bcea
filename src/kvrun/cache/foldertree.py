"""Folders by area, tenant and session below one root: every step down refuses symbolic links."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REF = re.compile(r"[A-Za-z0-9_-]{1,128}")


class FolderTree:
    """``AREA/<tenant_ref>/<session_ref>`` below the folder ``root_fd``; folders are 0700."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd

    def make_area(self, area: str) -> None:
        """Makes or checks an area. Raises OSError."""
        os.close(_descend(self._root_fd, area, create=True))

    @contextmanager
    def tenant(self, area: str, tenant_ref: str, *, create: bool = False) -> Iterator[int]:
        """The folder of a tenant's sessions. Raises OSError."""
        with (
            _opened(_descend(self._root_fd, area, create=create)) as above,
            _opened(_descend(above, checked_ref(tenant_ref), create=create)) as tenant,
        ):
            yield tenant

    @contextmanager
    def session(
        self, area: str, tenant_ref: str, session_ref: str, *, create: bool = False
    ) -> Iterator[int]:
        """The folder of a session. Raises OSError."""
        with (
            self.tenant(area, tenant_ref, create=create) as above,
            _opened(_descend(above, checked_ref(session_ref), create=create)) as session,
        ):
            yield session

    def sessions(self, area: str) -> Iterator[tuple[str, str]]:
        """Every (tenant_ref, session_ref) that has a folder in an area."""
        for tenant_ref in _folders(self._root_fd, area):
            with suppress(OSError), _opened(_descend(self._root_fd, area)) as above:
                for session_ref in _folders(above, tenant_ref):
                    yield tenant_ref, session_ref

    def remove_empty(self, area: str, tenant_ref: str, session_ref: str) -> None:
        """Removes a session's folder, and its tenant's, where nothing is left in them."""
        with suppress(OSError), _opened(_descend(self._root_fd, area)) as above:
            with suppress(OSError), _opened(_descend(above, tenant_ref)) as tenant:
                os.rmdir(session_ref, dir_fd=tenant)
            os.rmdir(tenant_ref, dir_fd=above)


def is_ref(ref: str) -> bool:
    """Whether it can be a tenant's or session's reference, and so a folder's name."""
    return _REF.fullmatch(ref) is not None


def checked_ref(ref: str) -> str:
    """``ref`` itself when it can be a folder's name. Raises ValueError otherwise."""
    if not is_ref(ref):
        raise ValueError(f"{ref!r} is not a reference (1..128 of A-Z a-z 0-9 _ -)")
    return ref


def _descend(above: int, part: str, *, create: bool = False) -> int:
    try:
        return os.open(part, DIR_FLAGS, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=above)
    return os.open(part, DIR_FLAGS, dir_fd=above)


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
