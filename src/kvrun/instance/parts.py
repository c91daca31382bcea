"""What an instance consists of behind its socket, opened in order and closed in reverse."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.audit.writer import AuditLimits, AuditLog, AuditMode
from kvrun.cache.disk import DiskTier
from kvrun.cache.events import Tier
from kvrun.cache.memory import MemoryTier
from kvrun.cache.object_tier import ObjectSettings, ObjectTier
from kvrun.cache.order import Sharing
from kvrun.cache.placement import Basis, Gate
from kvrun.cache.served import ServedModels
from kvrun.cache.state import BlockOwner
from kvrun.cache.store import CacheStore
from kvrun.claims.verify import ClaimVerifier
from kvrun.config import KvrunConfig
from kvrun.config.layout import storage_prefix
from kvrun.erasure.archive import FOLDER_NAME, CertificateArchive
from kvrun.erasure.certificate import SnapshotRetention
from kvrun.erasure.job import JobStore
from kvrun.erasure.ledger import ErasureLedger
from kvrun.erasure.plan import TOKEN_KEY_BYTES
from kvrun.erasure.statement import StatementFacts
from kvrun.erasure.targets import EngineScrubber
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file
from kvrun.instance.erasing import ErasureParts
from kvrun.instance.erasures import Erasures
from kvrun.instance.instance import Instance
from kvrun.instance.journal import Journal
from kvrun.instance.residency import Residency
from kvrun.instance.ring_signer import RingSigner
from kvrun.instance.transfers import Transfers
from kvrun.keys.opening import copying_slots, open_keys
from kvrun.keys.root import RootFacts
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.keys.slot_copies import SlotCopies
from kvrun.storage import Patience, open_storage

_DRAIN_TIMEOUT_S = 2.0
# A read that takes long is a miss anyway; a pack may take a while on a slow line.
_READING = Patience(request_s=5.0, connect_s=2.0, retries=1, retry_s=5.0)
_WRITING = Patience(request_s=30.0, connect_s=2.0, retries=0, retry_s=1.0)


class InstanceBusyError(KvrunError):
    """Another daemon works on the same data folder."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class InstanceParts:
    """An instance without a server. ``log_id`` names its log, and the instance.

    ``key_copies`` are in Storage, None where none are made here.
    """

    instance: Instance
    journal: Journal
    log: AuditLog
    log_id: str
    root: RootFacts
    memory: MemoryTier[BlockOwner]
    signing: SigningRing
    key_copies: SlotCopies | None

    def key_copy_refused(self) -> str:
        """Why no copy of the key slots goes to Storage and what to do; empty where all is well."""
        return self.key_copies.refused if self.key_copies is not None else ""


@dataclass(frozen=True, slots=True)
class RecordedGate:
    """What ``policy`` says, and no while the log cannot be written."""

    journal: Journal
    policy: Gate

    def allows(self, tenant_ref: str, session_ref: str, tier: Tier) -> bool:
        """Whether blocks may be placed and the placing can be put on record."""
        return self.journal.available and self.policy.allows(tenant_ref, session_ref, tier)

    def ttl_s(self, tenant_ref: str, session_ref: str, tier: Tier) -> float | None:
        """The policy's."""
        return self.policy.ttl_s(tenant_ref, session_ref, tier)

    def settled(self, tenant_ref: str, session_ref: str, tier: Tier) -> Basis | None:
        """The policy's."""
        return self.policy.settled(tenant_ref, session_ref, tier)

    def basis(self, tenant_ref: str, tier: Tier, why: str) -> Basis:
        """The policy's."""
        return self.policy.basis(tenant_ref, tier, why)


@contextlib.contextmanager
def open_parts(
    config: KvrunConfig,
    claim_keys: Sequence[Ed25519PublicKey] = (),
    *,
    memory_bytes: int | None = None,
    looking: bool = False,
) -> Iterator[InstanceParts]:
    """Keys, log, cache and the instance over them; the caller holds the data folder's lock.

    ``memory_bytes`` replaces the configured size of the memory tier; ``looking`` as of
    ``open_keys``.
    """
    layout = config.layout
    workspace, deployment = config.deployment.workspace, config.deployment.name
    with contextlib.ExitStack() as stack:
        log_id = f"{workspace}/{deployment}/{socket.gethostname()}"
        keys = open_keys(config, log_id, has_engines=True, looking=looking)
        stack.callback(keys.close)
        copies = stack.enter_context(copying_slots(config, keys))
        ring = SigningRing(layout.signing_keys, now=time.time)
        log = AuditLog.open(
            layout.audit,
            log_id=log_id,
            signer=RingSigner(log_id, ring),
            now=time.time,
            mode=AuditMode(config.audit.mode),
            limits=AuditLimits(
                segment_bytes=config.audit.segment_bytes,
                segment_seconds=config.audit.segment_max_age_s,
                heartbeat_seconds=config.audit.heartbeat_s,
                quota_bytes=config.audit.quota_bytes,
            ),
        )
        stack.callback(log.close)
        journal = Journal(log, workspace, deployment)
        stack.callback(journal.write_owed)
        if keys.recovery_text and keys.root_facts.persistent:
            journal.key_folder_lost(keys.recovery_text)
        residency = Residency.of(config, journal)
        settings = config.instance
        memory = MemoryTier[BlockOwner](
            memory_bytes or settings.memory_bytes,
            sharing=Sharing(settings.tenant_memory_bytes, cap_of=residency.cap_of(Tier.MEMORY)),
        )
        disk = None
        if not config.deployment.stateless and settings.disk_bytes:
            disk = DiskTier(
                layout.storage(workspace, deployment),
                max_bytes=settings.disk_bytes,
                sharing=Sharing(settings.tenant_disk_bytes, cap_of=residency.cap_of(Tier.DISK)),
            )
        cap_of = residency.cap_of(Tier.OBJECT)
        objects = open_object_tier(config, cap_of) if config.object_tier else None
        cache = CacheStore(
            memory=memory,
            disk=disk,
            objects=objects,
            on_event=journal.cache_event,
            gate=RecordedGate(journal, residency),
            ttl_s=settings.block_ttl_s,
            served=ServedModels(None if config.deployment.stateless else layout.served_models),
            alone=config.keys.mode != "service",
        )
        stack.callback(cache.close)
        instance = Instance(
            residency=residency,
            workspace=workspace,
            deployment=deployment,
            stateless=config.deployment.stateless,
            keys=keys,
            cache=cache,
            journal=journal,
            verifier=ClaimVerifier(claim_keys, deployment, time.time, workspace=workspace),
            now=time.time,
        )
        stack.callback(instance.stop)
        yield InstanceParts(instance, journal, log, log_id, keys.root_facts, memory, ring, copies)


def open_object_tier(
    config: KvrunConfig, cap_of: Callable[[str], int | None] = lambda tenant_ref: None
) -> ObjectTier:
    """The deployment's own folder in the workspace's Storage. Asks the store nothing yet.

    ``cap_of`` says how many bytes a tenant may have there.
    Raises StorageError for an address or an option that cannot be used.
    """
    storage, deployment = config.storage, config.deployment
    assert storage.url is not None
    memory_bytes = config.instance.memory_bytes
    return ObjectTier(
        open_storage(storage.url, storage.options, _READING),
        open_storage(storage.url, storage.options, _WRITING),
        storage_prefix(deployment.workspace, deployment.name),
        undeleted=config.layout.undeleted,
        cap_of=cap_of,
        settings=ObjectSettings(
            pack_bytes=config.instance.object_pack_bytes,
            pack_age_s=config.instance.object_pack_age_s,
            fetch_bytes=max(2**20, memory_bytes // 4),
            ahead_bytes=min(2 * config.instance.object_pack_bytes, memory_bytes // 8),
        ),
    )


@contextlib.contextmanager
def open_erasures(
    config: KvrunConfig,
    parts: InstanceParts,
    transfers: Transfers | None,
    scrubber: EngineScrubber,
) -> Iterator[Erasures]:
    """The erasures of these parts, with what a crash cut short finished.

    Keys of the ledger that an older copy brought back are destroyed again before this returns.
    """
    layout = config.layout
    log_id = f"{parts.log_id}/erasures"
    parts.signing.load_or_create(KeyPurpose.CERTIFICATE)  # so that a trust anchor has it
    jobs = JobStore(layout.erasure / "jobs")
    ledger = ErasureLedger.open(
        layout.erasure / "ledger",
        log_id=log_id,
        signer=RingSigner(log_id, parts.signing),
        now=time.time,
    )
    with contextlib.closing(ledger):
        erasures = Erasures(
            ErasureParts(
                instance=parts.instance,
                transfers=transfers,
                ledger=ledger,
                archive=CertificateArchive(certificates_folder(config)),
                scrubber=scrubber,
                signer=lambda: parts.signing.load_or_create(KeyPurpose.CERTIFICATE),
                facts=StatementFacts(
                    claim=parts.root.claim,
                    retention=SnapshotRetention(
                        root=config.erasure.root_snapshot_days or 0,
                        machine=config.erasure.machine_snapshot_days,
                    ),
                    declared=config.erasure.root_snapshot_days is not None,
                    policy_revision=parts.journal.policy_revision,
                    log_id=log_id,
                ),
                now=time.time,
                drain_timeout_s=_DRAIN_TIMEOUT_S,
                deadline_s=config.erasure.engine_deadline_s,
            ),
            jobs,
            _token_key(layout.erasure / "token.key"),
        )
        erasures.resume()
        erasures.replay()
        parts.instance.keys.on_new_service = erasures.replay
        yield erasures


def certificates_folder(config: KvrunConfig) -> Path:
    """Where the deployment's certificates are in Storage."""
    deployment = config.deployment
    return config.layout.storage(deployment.workspace, deployment.name) / FOLDER_NAME


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Be the one process that works on a data folder.

    Raises InstanceBusyError, or KvrunError where the folder cannot be used.
    """
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


def _token_key(path: Path) -> bytes:
    """The key that authenticates plans; made on first use."""
    try:
        if path.exists() and path.stat().st_size == TOKEN_KEY_BYTES:
            return path.read_bytes()
        key = os.urandom(TOKEN_KEY_BYTES)
        path.unlink(missing_ok=True)
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(key)
        return key
    except OSError as error:
        raise KvrunError(f"{path} cannot be used: {error.strerror}") from error
