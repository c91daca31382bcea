"""Telling a deployment's daemon what the registry says of its tenants, through a file.

The daemon decides by it where a tenant's context may be. A daemon that does not run reads it when
it starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvrun.config import KvrunConfig
from kvrun.deployments.registry import TenantRegistry
from kvrun.policy.bundle import TenantEntry
from kvrun.policy.setup import folder_of

_AT_ONCE = 1000


class KnownTenants:
    """Keeps the files of deployments as the registry is. Thread-safe."""

    def __init__(self, tenants: TenantRegistry) -> None:
        self._tenants = tenants
        self._lock = threading.Lock()
        self._written: set[str] = set()
        tenants.on_change = self._changed

    def write(self, deployment_id: str, config_of: Callable[[str], KvrunConfig]) -> None:
        """Write a deployment's file if the registry changed since, or this process began.

        Raises PolicyError where it cannot be written; the next call tries again.
        """
        with self._lock:
            if deployment_id in self._written:
                return
            self._written.add(deployment_id)
        try:
            folder = folder_of(config_of(deployment_id))
            entries = self._entries(deployment_id)
            if entries or folder.tenants_file.exists():
                folder.put_tenants(entries)
        except BaseException:
            self._changed(deployment_id)
            raise

    def _changed(self, deployment_id: str) -> None:
        with self._lock:
            self._written.discard(deployment_id)

    def _entries(self, deployment_id: str) -> list[TenantEntry]:
        entries: list[TenantEntry] = []
        after = ""
        while refs := self._tenants.refs(deployment_id, after=after, limit=_AT_ONCE):
            entries += [
                TenantEntry(
                    tenant_ref=note.tenant_ref,
                    tenant_class=note.tenant_class,
                    region=note.region,
                    labels=dict(note.labels),
                )
                for note in self._tenants.of(deployment_id, refs).values()
            ]
            after = refs[-1]
        return entries
