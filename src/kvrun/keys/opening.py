"""A deployment's keys as its configuration wants them: in this process, or through a service."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.keys.errors import RootError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.key_server import KeyServer
from kvrun.keys.limits import KeyLimits
from kvrun.keys.open_root import open_root as open_key_root
from kvrun.keys.remote import RemoteKeys
from kvrun.keys.root import Root
from kvrun.keys.service import KeyService
from kvrun.keys.service_token import make_token
from kvrun.keys.source import SessionKeySource

_EXPIRY_EVERY_S = 30.0
_log = logging.getLogger(__name__)


def key_limits(config: KvrunConfig) -> KeyLimits:
    """How many keys there may be and how long they live."""
    return KeyLimits(
        idle_timeout_s=config.keys.idle_timeout_s,
        absolute_timeout_s=config.keys.absolute_timeout_s,
        max_sessions_per_tenant=config.keys.max_sessions_per_tenant,
    )


def open_root(config: KvrunConfig) -> Root:
    """The key root that the configuration names; a warning where it proves no erasure."""
    root = open_key_root(
        config.keys,
        config.layout.data_dir,
        strict=config.deployment.strict,
        snapshot_days=config.erasure.root_snapshot_days,
    )
    if root.facts.claim is ClaimClass.LOGICAL:
        _log.warning(
            "the %s root can only delete keys, not prove that they are gone: erasures end in a key "
            "deletion record, not in a certificate (%s)",
            root.facts.kind,
            root.facts.reason,
        )
    return root


def open_keys(config: KvrunConfig, name: str) -> SessionKeySource:
    """The keys for an instance called ``name``; the caller closes them. Raises KeysError."""
    if config.keys.mode == "service":
        return RemoteKeys(
            config.key_socket,
            workspace=config.deployment.workspace,
            deployment=config.deployment.name,
            name=name,
            limits=key_limits(config),
            lease_s=config.keys.lease_s,
            strict_memory=config.deployment.strict,
        )
    return open_service(config)


def open_service(config: KvrunConfig) -> KeyService:
    """The key folder and root of the configuration, in this process. Raises KeysError."""
    return KeyService.open(
        config.layout.keys,
        open_root(config),
        strict_memory=config.deployment.strict,
        workspace=config.deployment.workspace,
        deployment=config.deployment.name,
        limits=key_limits(config),
        now=time.time,
        lease_s=config.keys.lease_s,
    )


def serve_keys(config: KvrunConfig) -> None:
    """Be the deployment's key service until SIGTERM or SIGINT. Raises KvrunError."""
    if config.keys.mode != "service":
        raise RootError(
            "this deployment's daemon has its keys itself",
            hint='Say keys.mode = "service" in its configuration, and restart the daemon.',
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _serving(config) as server:
        while not stop.wait(_EXPIRY_EVERY_S):
            try:
                server.expire()
            except KvrunError as error:
                _log.warning("keys that are too old wait: %s", error.message)


@contextlib.contextmanager
def _serving(config: KvrunConfig) -> Iterator[KeyServer]:
    config.layout.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.closing(open_service(config)) as service:
        path = config.key_socket
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = KeyServer(
            service,
            config.deployment.workspace,
            config.deployment.name,
            make_token(path),
            lease_s=config.keys.lease_s,
            strict_memory=config.deployment.strict,
        )
        thread = threading.Thread(target=server.serve, args=(path,), name="kvrun-keys-accept")
        thread.start()
        try:
            yield server
        finally:
            server.close()
            thread.join(timeout=5.0)
            path.unlink(missing_ok=True)
