"""Deployments of all workspaces: made, started, stopped, rebuilt, drained, deleted, supervised."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvrun.config import DEFAULT_FILE, KvrunConfig
from kvrun.deployments import attaching, errors, folder
from kvrun.deployments.deleting import Deleted
from kvrun.deployments.errors import DeploymentNotFoundError, NotOursError, WrongStateError
from kvrun.deployments.forgetting import Forgetting
from kvrun.deployments.gpus import look_at_gpus
from kvrun.deployments.known_tenants import KnownTenants
from kvrun.deployments.launcher import Launcher
from kvrun.deployments.local import LocalLauncher
from kvrun.deployments.machine import Command
from kvrun.deployments.model import (
    DETACHED,
    Deployment,
    DeploymentSpec,
    DeploymentState,
    LauncherKind,
    Wanted,
)
from kvrun.deployments.registry import TenantRegistry
from kvrun.deployments.spec import API_KEYS_FILE, Value, check_name, check_spec, checked_config
from kvrun.deployments.store import DeploymentStore, OnChange
from kvrun.deployments.supervision import GpuProbe, Supervision
from kvrun.deployments.watched import WatchedLauncher
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import ApiKeyRecord
from kvrun.gateway.apikeys_file import put_api_keys
from kvrun.launch.processes import COLLECTOR, ENGINE, GATEWAY, INSTANCE, gateway_url
from kvrun.launch.readiness import free_port
from kvrun.state import Database

PROCESSES = ("up", INSTANCE, ENGINE, GATEWAY, COLLECTOR)
"""Whose logs there are."""
MAX_TAIL_BYTES = 2**20
LOOK_EVERY_S = 5.0
_STEADY = frozenset({DeploymentState.CREATED, DeploymentState.RUNNING, DeploymentState.STOPPED})
_BUSY_S = 5.0
_POLL_S = 0.05
_log = logging.getLogger(__name__)


class Deployments:
    """The deployments in one database. Thread-safe.

    What it makes lies below ``home``/deployments. ``defaults`` are settings (dotted keys) of every
    deployment's ``kvrun.toml``, read at each of its starts: witnesses, Storage.
    ``on_change(deployment, before)`` is told of every change of state. Commands return at once
    unless they say otherwise; ``supervise``, called every second or so, leads to what they asked.
    """

    def __init__(
        self,
        database: Database,
        home: Path,
        *,
        defaults: Mapping[str, Value] | None = None,
        launchers: Mapping[LauncherKind, Launcher] | None = None,
        gpus: GpuProbe = look_at_gpus,
        on_change: OnChange = lambda deployment, before: None,
        now: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = os.urandom,
        host: str = "",
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self.tenants = TenantRegistry(database, now)
        self._forgetting = Forgetting(self.tenants, now)
        self._known_tenants = KnownTenants(self.tenants)
        self._home = home
        self._now = now
        self._random_bytes = random_bytes
        self._store = DeploymentStore(
            database, host=host or socket.gethostname(), now=now, on_change=on_change
        )
        other = WatchedLauncher()
        self._supervision = Supervision(
            self._store,
            self.tenants,
            launchers
            or {
                LauncherKind.LOCAL: LocalLauncher(),
                LauncherKind.ATTACHED: other,
                LauncherKind.OWN: other,
            },
            defaults={} if defaults is None else defaults,
            gpus=gpus,
            now=now,
            random_bytes=random_bytes,
        )
        self._look_every_s = look_every_s
        # When to look again at what was as it should be, by a monotonic clock.
        self._look_at: dict[str, float] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._table = threading.Lock()
        self._attaching = threading.Lock()

    def create(self, workspace_id: str, spec: DeploymentSpec) -> Deployment:
        """Make a deployment; it is not started.

        Raises SpecError for what cannot be one, and NameTakenError.
        """
        check_spec(spec)
        deployment_id = f"d-{self._random_bytes(6).hex()}"
        file = self._home / "deployments" / deployment_id / DEFAULT_FILE
        made = self._new(deployment_id, workspace_id, spec, LauncherKind.LOCAL, file, "")
        port = free_port()
        config = checked_config(self._supervision.text(made, port), file)
        made = replace(made, endpoint=gateway_url(config))
        with self._lock_of(deployment_id):  # others make the folder too where it is missing
            self._store.insert(made, port)
            self._supervision.prepare(made)
        return made

    def get(self, deployment_id: str) -> Deployment:
        """One deployment, also a deleted one. Raises DeploymentNotFoundError."""
        return self._store.get(deployment_id)

    def list(
        self, workspace_id: str | None = None, *, deleted: bool = True
    ) -> tuple[Deployment, ...]:
        """A workspace's deployments, or all; the living ones first, by name."""
        return self._store.all(workspace_id, deleted=deleted)

    def config_of(self, deployment: str | Deployment) -> KvrunConfig:
        """Its configuration as its own file says; by id, or by a record that was just read.

        Raises DeploymentNotFoundError or ConfigError.
        """
        found = self.get(deployment) if isinstance(deployment, str) else deployment
        return self._supervision.site(found).config

    def start(self, deployment_id: str) -> Deployment:
        """Start it.

        Raises WrongStateError, NotOursError or SharedGpuError; nothing changes then.
        """
        with self._alone(deployment_id):
            found = self._ours(deployment_id)
            if found.state is not DeploymentState.STOPPING:
                self._supervision.check_gpus(found)
            return self._ask(deployment_id, Command.START)

    def stop(self, deployment_id: str, *, wait_s: float = 0.0) -> Deployment:
        """Stop it: SIGTERM, and up to ``wait_s`` until it is gone. Raises as ``start`` does."""
        with self._alone(deployment_id):
            self._ours(deployment_id)
            found = self._ask(deployment_id, Command.STOP)
            deadline = time.monotonic() + wait_s
            while found.state is DeploymentState.STOPPING and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                found = self._supervision.round(deployment_id)
            return found

    def restart(self, deployment_id: str) -> Deployment:
        """Stop it and start it again. Raises as ``start`` does."""
        with self._alone(deployment_id):
            self._ours(deployment_id)
            return self._ask(deployment_id, Command.RESTART)

    def rebuild(self, deployment_id: str, spec: DeploymentSpec | None = None) -> Deployment:
        """Replace the instance: the same keys and Storage, a new process tree and engine, warm.

        A new ``spec`` takes effect with it. Raises as ``create`` and ``start`` do.
        """
        with self._alone(deployment_id):
            before = self._ours(deployment_id)
            if spec is not None:
                check_spec(spec, had_name=before.spec.name)
                self._supervision.text(replace(before, spec=spec), 1)
            self._store.command(deployment_id, Command.REBUILD, spec=spec)
            return self._supervision.round(deployment_id)

    def drain(self, deployment_id: str) -> Deployment:
        """Take no new requests (503) and stop when the last one is done, after ten minutes at most.

        Raises as ``start`` does.
        """
        with self._alone(deployment_id):
            self._ours(deployment_id)
            return self._ask(deployment_id, Command.DRAIN)

    def delete(self, deployment_id: str, requester: str) -> Deleted:
        """Erase its keys with a certificate and remove its ciphertext; log and record stay.

        Returns when it is done. What fails is tried again by ``supervise``. Raises
        WrongStateError, NotOursError while somebody else runs it, and what a step raises.
        """
        with self._alone(deployment_id):
            found = self.get(deployment_id)
            if found.launcher is not LauncherKind.LOCAL and self._supervision.is_alive(found):
                raise NotOursError(
                    f"the deployment {found.spec.name} is run by somebody else and runs still",
                    hint="Stop it there first.",
                )
            self._store.command(deployment_id, Command.DELETE, requester=requester)
            return self._supervision.delete(deployment_id)

    def supervise(self) -> tuple[Deployment, ...]:
        """Compare every record of this machine with what runs, and do what is due; what changed.

        What is as it should be is looked at every ``look_every_s``. One deployment's trouble is its
        ``reason`` and no other's.
        """
        changed = []
        for deployment_id in self._store.living_here():
            if time.monotonic() < self._look_at.get(deployment_id, 0.0):
                continue
            lock = self._lock_of(deployment_id)
            if not lock.acquire(blocking=False):
                continue  # somebody works on it now
            try:
                before = self.get(deployment_id)
                after = self._supervision.round(deployment_id)
                if after.state is not before.state:
                    changed.append(after)
                elif after.state in _STEADY:
                    self._look_at[deployment_id] = time.monotonic() + self._look_every_s
            except KvrunError as error:
                self._store.say(deployment_id, error.message)
            except Exception:
                _log.exception("the deployment %s cannot be looked after now", deployment_id)
            finally:
                lock.release()
        return tuple(changed)

    def forget_gone(self) -> None:
        """Forget what was said of tenants that the running deployments of this machine have no
        more; see ``Forgetting``."""
        for deployment_id in self._store.living_here():
            try:
                if self.get(deployment_id).state is DeploymentState.RUNNING:
                    self._forgetting.look(deployment_id, self.config_of(deployment_id))
            except KvrunError as error:
                _log.warning("the labels of %s: %s", deployment_id, error)

    def tell_tenants(self) -> None:
        """Tell the daemons of this machine what is said of their tenants."""
        for deployment_id in self._store.living_here():
            try:
                with self._lock_of(deployment_id):
                    self._known_tenants.write(deployment_id, self.config_of)
            except KvrunError as error:
                _log.warning("the labels for %s: %s", deployment_id, error)

    def register_own(
        self, config: KvrunConfig, config_file: Path, *, workspace_id: str = ""
    ) -> Deployment:
        """The deployment of the `kvrun up` that started this control plane.

        Again, it takes over what the configuration says by then.
        ``workspace_id``: whose it is here, when that is not its configuration's workspace.
        """
        known = self._store.by_file(config_file)
        if known is None:
            owner, name = workspace_id or config.deployment.workspace, config.deployment.name
            known = self._known(config, config_file, LauncherKind.OWN, owner, name)
            self._store.insert(known, config.gateway.port)
        elif known.launcher is LauncherKind.OWN:
            spec = attaching.spec_of(config, config.deployment.name)
            self._store.refresh(known, spec, config.gateway.port, gateway_url(config))
        with self._alone(known.id):
            return self._supervision.round(known.id)

    def attach_token(self, workspace_id: str, name: str) -> str:
        """A token with which somebody registers what they run; it works once, for an hour.

        Raises SpecError for a name that cannot be one.
        """
        check_name(name)
        token = attaching.make_token(self._random_bytes(32))
        expires_at = self._now() + attaching.TOKEN_LIFETIME_S
        self._store.put_token(attaching.hash_token(token), workspace_id, name, expires_at)
        return token

    def attach(self, token: str, config_file: Path) -> Deployment:
        """Register the engine and daemon of ``config_file`` on this machine.

        The token is used up by it, whatever comes of it. Raises AttachTokenError,
        AttachRefusedError, and NameTakenError, before the file is looked at.
        """
        with self._attaching:
            # Who has no token learns nothing of this machine's files, who has one only once.
            workspace_id, name = self._store.take_token(attaching.hash_token(token))
            file, config = attaching.read_attached(
                config_file, self._home / "deployments", self._store.all_here()
            )
            made = self._known(config, file, LauncherKind.ATTACHED, workspace_id, name)
            self._store.insert(made, config.gateway.port)
        with self._alone(made.id):
            return self._supervision.round(made.id)

    def detach(self, deployment_id: str) -> Deployment:
        """Forget an attached deployment: its keys and data stay with whoever runs it."""
        with self._alone(deployment_id):
            found = self.get(deployment_id)
            if found.launcher is not LauncherKind.ATTACHED or found.read_only:
                raise errors.not_attached(found.spec.name)
            self.tenants.forget(deployment_id)
            return self._store.finish(deployment_id, (), DETACHED)

    def logs(self, deployment_id: str, process: str = "up", *, tail_bytes: int = 65536) -> str:
        """The end of a process's log: one of PROCESSES. Raises DeploymentNotFoundError."""
        if process not in PROCESSES:
            raise DeploymentNotFoundError(
                f"no process is called {process[:40]!r}", hint=f"known are {', '.join(PROCESSES)}"
            )
        path = self.config_of(deployment_id).layout.logs / f"{process}.log"
        return folder.read_tail(path, max(1, min(tail_bytes, MAX_TAIL_BYTES)))

    def set_api_keys(self, deployment_id: str, records: Sequence[ApiKeyRecord]) -> None:
        """Replace the gateway's API keys of the control plane; it takes them up within a second.

        Keys that others put into its file stay. Raises NotOursError for a deployment that somebody
        else runs, WrongStateError for one that is deleted, GatewayConfigError.
        """
        if self.get(deployment_id).launcher is LauncherKind.OWN:
            config = self.config_of(deployment_id)
            path = config.gateway.api_keys_file or config.layout.api_keys
        else:
            path = self._ours(deployment_id).folder / API_KEYS_FILE
        put_api_keys(path, records)

    def _ask(self, deployment_id: str, asked: Command) -> Deployment:
        self._store.command(deployment_id, asked)
        return self._supervision.round(deployment_id)

    def _ours(self, deployment_id: str) -> Deployment:
        found = self.get(deployment_id)
        if found.launcher is not LauncherKind.LOCAL:
            raise NotOursError(
                f"the deployment {found.spec.name} is run by somebody else",
                hint="Who started it starts and stops it.",
            )
        if found.read_only:
            raise errors.read_only(found.spec.name)
        return found

    def _known(
        self, config: KvrunConfig, file: Path, kind: LauncherKind, workspace_id: str, name: str
    ) -> Deployment:
        spec = attaching.spec_of(config, name)
        deployment_id = f"d-{self._random_bytes(6).hex()}"
        return self._new(deployment_id, workspace_id, spec, kind, file, gateway_url(config))

    def _new(
        self,
        deployment_id: str,
        workspace_id: str,
        spec: DeploymentSpec,
        kind: LauncherKind,
        file: Path,
        endpoint: str,
    ) -> Deployment:
        now = self._now()
        return Deployment(
            id=deployment_id,
            workspace_id=workspace_id,
            spec=spec,
            state=DeploymentState.CREATED,
            wanted=Wanted.STOP,
            reason="",
            launcher=kind,
            folder=file.parent,
            config_file=file,
            endpoint=endpoint,
            instance=1,
            restarts=0,
            created_at=now,
            state_since=now,
        )

    def _lock_of(self, deployment_id: str) -> threading.RLock:
        with self._table:
            return self._locks.setdefault(deployment_id, threading.RLock())

    @contextmanager
    def _alone(self, deployment_id: str) -> Iterator[None]:
        lock = self._lock_of(deployment_id)
        if not lock.acquire(timeout=_BUSY_S):
            raise WrongStateError(
                f"something else is being done to the deployment {deployment_id}", hint="Try again."
            )
        try:
            self._look_at.pop(deployment_id, None)
            yield
        finally:
            lock.release()
