"""Sealing and opening the indexes of a session's packs, with the session's own keys."""

from __future__ import annotations

import os
import weakref

from kvrun.cache.pack import index_context
from kvrun.keys.errors import KeyUnavailableError
from kvrun.keys.session import SessionKeys
from kvrun.seal.envelope import SALT_BYTES, plain_size, sealed_size


class SessionPackKeys:
    """What :class:`kvrun.cache.sessionpacks.PackKeys` asks for, over one session's keys.

    The keys are not kept alive by it: whoever uses the session does that.
    """

    def __init__(self, keys: SessionKeys, fingerprint: bytes) -> None:
        self._keys = weakref.ref(keys)
        self.fingerprint = fingerprint
        self.generation = keys.generation

    def seal_index(self, name: str, plain: bytes) -> bytes:
        """The sealed index of the pack ``name``.

        Raises:
            KeyDestroyedError: the session's key is gone.
            KeyUnavailableError: nobody uses the session any more.
        """
        keys = self._live()
        sealed = bytearray(sealed_size(len(plain)))
        keys.sealer.seal_into(_context(keys, name), plain, sealed, salt=os.urandom(SALT_BYTES))
        return bytes(sealed)

    def open_index(self, name: str, sealed: memoryview) -> bytes:
        """The index of the pack ``name``.

        Raises:
            KvrunError: it is another pack's or session's, or was changed; or as ``seal_index``.
        """
        keys = self._live()
        plain = bytearray(plain_size(len(sealed)))
        keys.sealer.open_into(_context(keys, name), sealed, plain)
        return bytes(plain)

    def _live(self) -> SessionKeys:
        keys = self._keys()
        if keys is None:
            raise KeyUnavailableError("The session is not in use, so its keys are not at hand")
        return keys


def _context(keys: SessionKeys, name: str) -> bytes:
    scope = keys.scope
    return index_context(
        scope.workspace, scope.deployment, scope.tenant, scope.session, keys.generation, name
    )
