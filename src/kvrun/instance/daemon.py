"""The instance daemon's process: opens what it needs in order, serves, and closes in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.audit.checkpoint import Ed25519Signer
from kvrun.audit.writer import AuditLimits, AuditLog, AuditMode
from kvrun.cache.disk import DiskTier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore
from kvrun.claims.claim import key_id_of
from kvrun.claims.verify import ClaimVerifier
from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file
from kvrun.instance.admin import AdminService
from kvrun.instance.audit_access import AuditAccess
from kvrun.instance.instance import Instance
from kvrun.instance.journal import Journal
from kvrun.instance.launch_secrets import LaunchSecrets
from kvrun.instance.sealing import SealingThreads
from kvrun.instance.server import InstanceServer, ServerSettings
from kvrun.instance.transfers import Transfers
from kvrun.keys.file_root import FileRoot
from kvrun.keys.memory_root import MemoryRoot
from kvrun.keys.root import Root
from kvrun.keys.service import KeyLimits, KeyService
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.process import HardenReport, harden_process

_HOUSEKEEPING_S = 1.0
_EXPIRY_EVERY_S = 30.0
_log = logging.getLogger(__name__)


class InstanceBusyError(KvrunError):
    """Another daemon works on the same data folder."""

    exit_code = 3


def run(config: KvrunConfig, secrets: LaunchSecrets) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        KvrunError: something that the daemon cannot work without is missing; nothing was started.
    """
    hardened = harden_process()
    with (
        _folder_lock(config.layout.data_dir),
        _open_instance(config, secrets, hardened) as opened,
    ):
        asyncio.run(_serve(opened, config.instance_socket))


@dataclass(slots=True)
class _Opened:
    server: InstanceServer
    instance: Instance


async def _serve(opened: _Opened, path: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    housekeeping = asyncio.create_task(_keep_house(opened.instance))
    try:
        await opened.server.serve(path, stop)
    finally:
        housekeeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await housekeeping


async def _keep_house(instance: Instance) -> None:
    next_expiry = time.monotonic() + _EXPIRY_EVERY_S
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        await asyncio.to_thread(instance.cache.deliver_events)
        await asyncio.to_thread(instance.journal.write_owed)
        instance.handles.forget_finished(time.time())
        if time.monotonic() >= next_expiry:
            next_expiry = time.monotonic() + _EXPIRY_EVERY_S
            await asyncio.to_thread(instance.expire)


@contextlib.contextmanager
def _open_instance(
    config: KvrunConfig, secrets: LaunchSecrets, hardened: HardenReport
) -> Iterator[_Opened]:
    """Everything behind the socket, opened in order and closed in reverse."""
    layout = config.layout
    workspace, deployment = config.deployment.workspace, config.deployment.name
    with contextlib.ExitStack() as stack:
        root = _open_root(config)
        keys = KeyService.open(
            layout.keys,
            root,
            strict_memory=config.deployment.strict,
            workspace=workspace,
            deployment=deployment,
            limits=KeyLimits(
                idle_timeout_s=config.keys.idle_timeout_s,
                absolute_timeout_s=config.keys.absolute_timeout_s,
                max_sessions_per_tenant=config.keys.max_sessions_per_tenant,
            ),
            now=time.time,
        )
        stack.callback(keys.close)
        log_id = f"{workspace}/{deployment}/{socket.gethostname()}"
        ring = SigningRing(layout.signing_keys, now=time.time)
        signing_key = ring.load_or_create(KeyPurpose.CHECKPOINT).private_key
        log = AuditLog.open(
            layout.audit,
            log_id=log_id,
            signer=Ed25519Signer(log_id, signing_key),
            now=time.time,
            mode=AuditMode(config.audit.mode),
            limits=AuditLimits(
                segment_bytes=config.audit.segment_bytes,
                segment_seconds=config.audit.segment_max_age_s,
                heartbeat_seconds=config.audit.heartbeat_s,
            ),
        )
        stack.callback(log.close)
        journal = Journal(log, workspace, deployment)
        stack.callback(journal.write_owed)
        memory = MemoryTier[BlockOwner](config.instance.memory_bytes)
        disk = None
        if not config.deployment.stateless and config.instance.disk_bytes:
            disk = DiskTier(
                layout.storage(workspace, deployment), max_bytes=config.instance.disk_bytes
            )
        cache = CacheStore(
            memory=memory,
            disk=disk,
            on_event=journal.cache_event,
            may_persist=lambda _tenant, _session: journal.available,
        )
        stack.callback(cache.close)
        threads = SealingThreads(config.instance.sealing_threads, config.instance.sealing_cpus)
        stack.callback(threads.close)
        public_keys = [Ed25519PublicKey.from_public_bytes(raw) for raw in secrets.claim_public_keys]
        instance = Instance(
            workspace=workspace,
            deployment=deployment,
            stateless=config.deployment.stateless,
            keys=keys,
            cache=cache,
            journal=journal,
            verifier=ClaimVerifier(public_keys, deployment, time.time, workspace=workspace),
            now=time.time,
        )
        admin = AdminService(
            instance,
            audit_size=lambda: log.size,
            protections={
                "process": "not dumpable" if hardened.complete else "core dumps are possible",
                "keys": keys.protection.value,
                "erasure": f"{root.facts.claim.value}: {root.facts.reason}",
                "staging": "no engine is connected",
                "memory_tier": "locked" if memory.locked else f"not locked: {memory.lock_error}",
            },
        )
        admin.add(AuditAccess(log).operations())
        server = InstanceServer(
            instance,
            Transfers(instance.handles, journal, threads),
            admin,
            ServerSettings(
                instance_id=log_id,
                tokens=secrets.tokens(),
                claim_keys={
                    key_id_of(key): raw
                    for key, raw in zip(public_keys, secrets.claim_public_keys, strict=True)
                },
                context_window=config.deployment.context_window or 0,
                match_deadline_ms=config.instance.match_deadline_ms,
                transfer_deadline_ms=config.instance.load_deadline_ms,
                staging_bytes=config.instance.staging_bytes,
                strict=config.deployment.strict,
            ),
        )
        yield _Opened(server, instance)


def _open_root(config: KvrunConfig) -> Root:
    kind, _, place = config.keys.root.partition(":")
    if kind == "memory":
        return MemoryRoot(strict=config.deployment.strict)
    folder = config.layout.data_dir / Path(place).expanduser()
    return FileRoot(folder, strict=config.deployment.strict)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Refuse a second daemon on one data folder."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = hold_file(folder / "instance.lock", str(os.getpid()))
    except FileTakenError as error:
        raise InstanceBusyError(
            f"another instance daemon (process {error.holder or '?'}) works on {folder}",
            hint="stop it, or give this one a data folder of its own",
        ) from error
    except OSError as error:
        raise KvrunError(
            f"the data folder {folder} cannot be used: {error.strerror}",
            hint="instance.data_dir must be a folder that the daemon's user can write",
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
