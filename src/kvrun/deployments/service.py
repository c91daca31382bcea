"""Deployments of all workspaces: made, started, stopped, rebuilt, drained, deleted, supervised."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from kvrun.config import DEFAULT_FILE, KvrunConfig, load_config
from kvrun.deployments import attaching, deleting, folder
from kvrun.deployments.errors import (
    DeploymentNotFoundError,
    NameTakenError,
    NotOursError,
    WrongStateError,
)
from kvrun.deployments.gpus import look_at_gpus
from kvrun.deployments.launcher import Launcher, Site
from kvrun.deployments.local import LocalLauncher
from kvrun.deployments.machine import Action, Command, Life, Seen, command, failed, step, watched
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    GpuNote,
    LauncherKind,
    Wanted,
)
from kvrun.deployments.records import (
    DeploymentRow,
    deployment_of,
    encode,
    life_of,
    new_row,
    put_life,
)
from kvrun.deployments.registry import TenantRegistry
from kvrun.deployments.spec import Value, check_spec, checked_config, config_text, settings_of
from kvrun.deployments.watched import WatchedLauncher
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import ApiKeyRecord
from kvrun.launch.processes import gateway_url
from kvrun.launch.readiness import free_port
from kvrun.state import Database

_BUSY_S = 5.0
_POLL_S = 0.05
OnChange = Callable[[Deployment, DeploymentState], None]
GpuProbe = Callable[[Sequence[int]], tuple[GpuNote, ...] | None]


class Deployments:
    """The deployments in one database. Thread-safe.

    What it makes lies below ``home``/deployments. ``defaults`` are settings (dotted keys) of every
    deployment's ``kvrun.toml``: key root, witnesses, Storage. ``on_change(deployment, before)`` is
    told of every change of state. Commands return at once unless they say otherwise; ``supervise``,
    called every second or so, leads to what they asked for.
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
    ) -> None:
        self.tenants = TenantRegistry(database, now)
        self._database = database
        self._home = home
        self._defaults = dict(defaults or {})
        other = WatchedLauncher()
        self._launchers: Mapping[LauncherKind, Launcher] = launchers or {
            LauncherKind.LOCAL: LocalLauncher(),
            LauncherKind.ATTACHED: other,
            LauncherKind.OWN: other,
        }
        self._gpus = gpus
        self._on_change = on_change
        self._now = now
        self._random_bytes = random_bytes
        self._host = host or socket.gethostname()
        self._locks: dict[str, threading.RLock] = {}
        self._table = threading.Lock()

    def create(self, workspace_id: str, spec: DeploymentSpec) -> Deployment:
        """Make a deployment; it is not started.

        Raises SpecError for what cannot be one, and NameTakenError.
        """
        check_spec(spec)
        deployment_id = f"d-{self._random_bytes(6).hex()}"
        place = self._home / "deployments" / deployment_id
        now, port = self._now(), free_port()
        file = place / DEFAULT_FILE
        config = checked_config(self._text(deployment_id, workspace_id, spec, port), file)
        made = Deployment(
            id=deployment_id,
            workspace_id=workspace_id,
            spec=spec,
            state=DeploymentState.CREATED,
            wanted=Wanted.STOP,
            reason="",
            launcher=LauncherKind.LOCAL,
            folder=place,
            config_file=file,
            endpoint=gateway_url(config),
            instance=1,
            restarts=0,
            created_at=now,
            state_since=now,
        )
        self._insert(made, port)
        self._site(made)
        return made

    def get(self, deployment_id: str) -> Deployment:
        """One deployment, also a deleted one. Raises DeploymentNotFoundError."""
        with self._database.reading() as session:
            return deployment_of(_found(session.get(DeploymentRow, deployment_id), deployment_id))

    def list(self, workspace_id: str | None = None, *, deleted: bool = True) -> tuple[Deployment, ...]:
        """A workspace's deployments, or all; the living ones first, by name."""
        query = select(DeploymentRow).order_by(DeploymentRow.name, DeploymentRow.created_at)
        if workspace_id is not None:
            query = query.where(DeploymentRow.workspace_id == workspace_id)
        if not deleted:
            query = query.where(DeploymentRow.deleted_at.is_(None))
        with self._database.reading() as session:
            found = [deployment_of(row) for row in session.scalars(query)]
        return tuple(sorted(found, key=lambda item: item.read_only))

    def config_of(self, deployment_id: str) -> KvrunConfig:
        """Its configuration as its own file says. Raises DeploymentNotFoundError or ConfigError."""
        return self._site(self.get(deployment_id)).config

    def start(self, deployment_id: str) -> Deployment:
        """Start it. Raises WrongStateError, NotOursError or SharedGpuError; nothing changes then."""
        with self._alone(deployment_id):
            self._check_gpus(self._ours(deployment_id))
            return self._ask(deployment_id, Command.START)

    def stop(self, deployment_id: str, *, wait_s: float = 0.0) -> Deployment:
        """Stop it: SIGTERM, and up to ``wait_s`` until it is gone. Raises as ``start`` does."""
        with self._alone(deployment_id):
            self._ours(deployment_id)
            self._ask(deployment_id, Command.STOP)
            return self._wait(deployment_id, wait_s)

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
                check_spec(spec)
            self._rebuild(before, spec or before.spec)
            return self._ask(deployment_id, Command.REBUILD)

    def drain(self, deployment_id: str) -> Deployment:
        """Take no new requests (503) and stop when the last one is done, after ten minutes at most.

        Raises as ``start`` does.
        """
        with self._alone(deployment_id):
            self._ours(deployment_id)
            return self._ask(deployment_id, Command.DRAIN)

    def delete(self, deployment_id: str, requester: str) -> deleting.Deleted:
        """Erase its keys with a certificate and remove its ciphertext; log and record stay.

        Returns when it is done. What fails is tried again by ``supervise``. Raises
        WrongStateError, NotOursError while somebody else runs it, and what a step raises.
        """
        raise NotImplementedError

    def supervise(self) -> tuple[Deployment, ...]:
        """Compare every record of this machine with what runs, and do what is due; what changed.

        One deployment's trouble is its ``reason`` and no other's.
        """
        raise NotImplementedError

    def register_own(
        self, config: KvrunConfig, config_file: Path, *, workspace_id: str = ""
    ) -> Deployment:
        """The deployment of the `kvrun up` that started this control plane; again is harmless.

        ``workspace_id``: whose it is here, when that is not its configuration's workspace.
        """
        raise NotImplementedError

    def attach_token(self, workspace_id: str, name: str, *, multi_tenant: bool) -> str:
        """A token with which somebody registers what they run; it works once, for an hour."""
        raise NotImplementedError

    def attach(self, token: str, config_file: Path) -> Deployment:
        """Register the engine and daemon of ``config_file`` on this machine.

        Raises AttachTokenError, ConfigError, and WrongStateError for one that is registered.
        """
        raise NotImplementedError

    def detach(self, deployment_id: str) -> Deployment:
        """Forget an attached deployment: its keys and data stay with whoever runs it."""
        raise NotImplementedError

    def logs(self, deployment_id: str, process: str = "up", *, tail_bytes: int = 65536) -> str:
        """The end of a process's log: ``up``, ``instance``, ``engine``, ``gateway``, ``collector``.

        Raises DeploymentNotFoundError where there is none.
        """
        raise NotImplementedError

    def set_api_keys(self, deployment_id: str, records: Sequence[ApiKeyRecord]) -> None:
        """Replace the gateway's API keys; it takes them up within a second.

        Raises NotOursError for a deployment that somebody else runs.
        """
        raise NotImplementedError

    def issue_api_key(self, deployment_id: str, key_id: str, scopes: Sequence[str]) -> str:
        """Make an API key of the gateway; its text is shown this once."""
        raise NotImplementedError
