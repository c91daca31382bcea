"""A deployment's keys as its configuration wants them: in this process, or through a service."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.config import KvrunConfig
from kvrun.config.layout import storage_prefix
from kvrun.errors import KvrunError
from kvrun.keys.daemon_state import Pages
from kvrun.keys.errors import KeysError, KeyUnavailableError, RootError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.key_losses import refuse_to_lose, require_key_file, require_newest
from kvrun.keys.key_server import KeyServer
from kvrun.keys.keyring import SLOTS_NAME
from kvrun.keys.limits import KeyLimits
from kvrun.keys.metrics import KeyServiceMetrics
from kvrun.keys.open_root import open_root as open_key_root
from kvrun.keys.remote import RemoteKeys
from kvrun.keys.ring_entries import BeforeLoss, let_it_go
from kvrun.keys.root import Root
from kvrun.keys.service import KeyService
from kvrun.keys.service_token import make_token
from kvrun.keys.session import SessionKeys
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.keys.slot_copies import COPIED_NAME, ServiceSlots, SlotCopies, fetch_slots
from kvrun.keys.source import SessionKeySource
from kvrun.storage import Patience, Storage, open_storage
from kvrun.telemetry.endpoint import serving

_EXPIRY_EVERY_S = 30.0
_COPYING = Patience(request_s=10.0, connect_s=2.0, retries=0, retry_s=1.0)
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


def open_keys(
    config: KvrunConfig, name: str, *, has_engines: bool = False, looking: bool = False
) -> SessionKeySource:
    """The keys for an instance called ``name``; the caller closes them. Raises KeysError.

    One that ``has_engines`` confirms no pages of destroyed keys until ``on_taken`` is set. Who is
    only ``looking`` is refused a folder that lacks keys, which a start would do without.
    """
    if config.keys.mode == "service":
        ring = SigningRing(config.layout.signing_keys, now=time.time)
        return RemoteKeys(
            config.key_socket,
            workspace=config.deployment.workspace,
            deployment=config.deployment.name,
            name=name,
            limits=key_limits(config),
            instance_key=_instance_key(ring),
            lease_s=config.keys.lease_s,
            strict_memory=config.deployment.strict,
            on_taken=_unconfirmed if has_engines else _without_engines,
        )
    return open_service(config, looking=looking)


def _unconfirmed(
    _keys: Sequence[SessionKeys], _owners: Sequence[bytes], _tell: Callable[[Pages], None]
) -> None:
    """Engines may run since before this process."""


def _without_engines(
    _keys: Sequence[SessionKeys], _owners: Sequence[bytes], tell: Callable[[Pages], None]
) -> None:
    tell(Pages())


def _instance_key(ring: SigningRing) -> Ed25519PrivateKey:
    try:
        return ring.load_or_create(KeyPurpose.INSTANCE).private_key
    except OSError as error:
        raise KeyUnavailableError(
            f"the instance key in {ring.folder} cannot be read: {error.strerror}"
        ) from None


def open_service(config: KvrunConfig, *, looking: bool = False) -> KeyService:
    """The key folder and root of the configuration, in this process. Raises KeysError.

    See ``open_keys`` for ``looking``.
    """
    keys = config.layout.keys
    if looking and not (keys / SLOTS_NAME).exists():
        raise KeysError(
            f"{keys / SLOTS_NAME} is not there",
            hint="Mount or put back that folder. Where the deployment never ran, it holds nobody.",
        )
    root = open_root(config)
    try:
        require_key_file(keys, root, in_storage=config.object_tier)
        return KeyService.open(
            keys,
            root,
            strict_memory=config.deployment.strict,
            workspace=config.deployment.workspace,
            deployment=config.deployment.name,
            limits=key_limits(config),
            now=time.time,
            lease_s=config.keys.lease_s,
            before_loss=refuse_to_lose(keys) if looking else _before_loss(config, root),
        )
    except BaseException:
        root.close()
        raise


def _before_loss(config: KvrunConfig, root: Root) -> BeforeLoss:
    if not config.object_tier:
        return let_it_go
    workspace, deployment = config.deployment.workspace, config.deployment.name
    return require_newest(
        config.layout.keys,
        root,
        workspace,
        deployment,
        lambda: _storage(config),
        copies_folder(workspace, deployment),
    )


@contextlib.contextmanager
def copying_slots(config: KvrunConfig, keys: SessionKeySource) -> Iterator[SlotCopies | None]:
    """Keep a copy of the key slots in Storage beside the packs that they open, where there are any.

    Only for keys that are in this process, with a root that outlives it. Ends with a last copy;
    ``keys`` are closed after it.
    """
    here = isinstance(keys, KeyService) and keys.root_facts.persistent
    if not config.object_tier or not here:
        yield None
        return
    assert isinstance(keys, KeyService)
    workspace, deployment = config.deployment.workspace, config.deployment.name
    copies = SlotCopies(
        ServiceSlots(keys, workspace, deployment),
        _storage(config),
        copies_folder(workspace, deployment),
        config.layout.keys / COPIED_NAME,
    )
    copies.start()
    try:
        yield copies
    finally:
        copies.close()


def fetch_keys(config: KvrunConfig) -> str:
    """Bring the newest copy of the key slots from Storage into the empty key folder; its name.

    Raises KvrunError.
    """
    if not config.object_tier:
        raise KeysError(
            "nothing of this deployment is in an object store",
            hint="storage.url names the store that the deployment had.",
        )
    workspace, deployment = config.deployment.workspace, config.deployment.name
    folder = copies_folder(workspace, deployment)
    with contextlib.closing(open_root(config)) as root:
        return fetch_slots(
            _storage(config), folder, config.layout.keys, root, workspace, deployment
        )


def copies_folder(workspace: str, deployment: str) -> str:
    """Where the copies of a deployment's key slots are in Storage."""
    return f"{storage_prefix(workspace, deployment)}/keys"


def _storage(config: KvrunConfig) -> Storage:
    assert config.storage.url is not None
    return open_storage(config.storage.url, config.storage.options, _COPYING)


@contextlib.contextmanager
def serving_keys(config: KvrunConfig) -> Iterator[KeyServer]:
    """The deployment's key service, in this process. Raises KvrunError."""
    config.layout.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        contextlib.closing(open_service(config)) as service,
        copying_slots(config, service),
    ):
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


def metrics_of(config: KvrunConfig, server: KeyServer) -> KeyServiceMetrics:
    """What the deployment's key service says of itself."""
    return KeyServiceMetrics(server.state, config.deployment.workspace, config.deployment.name)


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
    port, socket_file = config.keys.metrics_port, config.keys.metrics_socket
    with (
        serving_keys(config) as server,
        serving(metrics_of(config, server).probes, port=port, socket_file=socket_file),
    ):
        while not stop.wait(_EXPIRY_EVERY_S):
            try:
                server.expire()
            except KvrunError as error:
                _log.warning("keys that are too old wait: %s", error.message)
