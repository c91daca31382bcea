"""Keeping a session's context warm on an operator's word."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kvrun.cache.session import CacheSession
from kvrun.instance.admin import NotFoundError, UnknownOperationError
from kvrun.instance.instance import Instance


class Kept(msgspec.Struct, frozen=True):
    """What is kept of a session: its first blocks and their sealed bytes."""

    blocks: int
    bytes: int


class PinAccess:
    """The operations on one instance."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def operations(self) -> dict[str, Callable[[Mapping[str, str]], object]]:
        """By name, for the admin service."""
        return {"pin": self._pin, "unpin": self._unpin}

    def _pin(self, arguments: Mapping[str, str]) -> Kept:
        kept = self._instance.cache.keep(self._session(arguments))
        return Kept(kept.blocks, kept.bytes)

    def _unpin(self, arguments: Mapping[str, str]) -> Kept:
        session = self._session(arguments)
        kept = session.kept
        session.release()
        return Kept(kept.blocks, kept.bytes)

    def _session(self, arguments: Mapping[str, str]) -> CacheSession:
        tenant, session = arguments.get("tenant", ""), arguments.get("session", "")
        if not tenant or not session:
            raise UnknownOperationError("the operation needs arguments 'tenant' and 'session'")
        keys = self._instance.keys.find(tenant, session)
        if keys is None:
            raise NotFoundError("no such session has a key here")
        cache = self._instance.cache
        return cache.session(keys.tenant_ref, keys.session_ref, epoch=keys.generation)
