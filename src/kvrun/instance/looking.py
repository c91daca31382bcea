"""What a stopped deployment keeps, by its keys and its folder, without opening its log or cache.

Many deployments are asked where a person's data is. Opening a log writes to it; this does not, so
no id can be told here: that needs a record first.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

from kvrun.cache.folder import BlockFolder
from kvrun.cache.handles import HeldByTier
from kvrun.config import KvrunConfig
from kvrun.instance.usage import KeptUse
from kvrun.keys.listing import SessionListing
from kvrun.keys.opening import open_keys


@contextlib.contextmanager
def open_listing(config: KvrunConfig) -> Iterator[SessionListing]:
    """Who has keys of a deployment that does not run; the caller holds the data folder's lock.

    Raises KeysError, with nothing changed, for a folder that lacks keys that it had.
    """
    workspace, deployment = config.deployment.workspace, config.deployment.name
    keys = open_keys(config, f"{workspace}/{deployment}/{socket.gethostname()}", looking=True)
    with contextlib.closing(keys):
        yield keys.listing


@contextlib.contextmanager
def kept_use(config: KvrunConfig, listing: SessionListing) -> Iterator[KeptUse]:
    """The use of a deployment that does not run; the caller holds the data folder's lock.

    Blocks in Storage are not counted: only a running daemon knows them without asking.
    """
    root = config.layout.storage(config.deployment.workspace, config.deployment.name)
    with contextlib.ExitStack() as opened:
        folders: list[BlockFolder] = []

        def measure(tenant_ref: str, session_ref: str) -> HeldByTier:
            if not root.is_dir():
                return HeldByTier(0, 0, 0, 0)
            if not folders:
                # Only where somebody has something: that is one deployment of many.
                folders.append(opened.enter_context(contextlib.closing(BlockFolder(root))))
            return HeldByTier(0, 0, *folders[0].held(tenant_ref, session_ref))

        yield KeptUse(listing, measure, _not_on_record)


def _not_on_record(tenant_refs: Sequence[str], reason: str) -> None:
    raise AssertionError("an id is told by a log that is open")
