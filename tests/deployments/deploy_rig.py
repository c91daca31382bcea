"""Deployments in a folder, with what runs in the place of `kvrun up`, and users of one."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import Claim, ClaimSigner
from kvrun.deployments.launcher import Launcher, Site
from kvrun.deployments.local import LocalLauncher
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    GpuNote,
    LauncherKind,
)
from kvrun.deployments.service import Deployments
from kvrun.deployments.watched import WatchedLauncher
from kvrun.instance.grant import SessionGrant
from kvrun.launch.admin import ask_daemon
from kvrun.state import Database
from support.byhand import BLOCK_BYTES, HandEngine
from support.client import eventually, grant

HERE = Path(__file__).parent
WORKSPACE = "w-1"
FAKE, DAEMON = HERE / "up_fake.py", HERE / "up_daemon.py"


@dataclass
class Clock:
    """Seconds since 1970 that pass when they are told to, besides those that pass anyway."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def spec(name: str = "chat", **fields: object) -> DeploymentSpec:
    """A small deployment."""
    given = {"model": "tiny", "multi_tenant": True, "memory_bytes": 8 << 20, "disk_bytes": 1 << 30}
    return DeploymentSpec(name=name, **{**given, **fields})  # type: ignore[arg-type]


@dataclass
class Rig:
    """A control plane in ``home``; ``again`` is another one there, as after a restart."""

    home: Path
    up: Path = FAKE
    clock: Clock = field(default_factory=Clock)
    gpus: Callable[[Sequence[int]], tuple[GpuNote, ...] | None] = lambda ids: None
    changes: list[tuple[DeploymentState, DeploymentState]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database = Database.open(f"sqlite:///{self.home / 'control.sqlite'}")
        other = WatchedLauncher()
        launchers: dict[LauncherKind, Launcher] = {
            LauncherKind.LOCAL: LocalLauncher(command=self._command),
            LauncherKind.ATTACHED: other,
            LauncherKind.OWN: other,
        }
        self.deployments = Deployments(
            self.database,
            self.home,
            # An engine within the test's own process cannot be woken.
            defaults={"erasure.engine_deadline_s": 1, **self.settings},
            launchers=launchers,
            gpus=lambda ids: self.gpus(ids),
            on_change=lambda after, before: self.changes.append((before, after.state)),
            now=self.clock,
            look_every_s=0.0,
        )

    def again(self) -> Rig:
        """A new control plane that knows nothing but what is on disk."""
        self.database.close()
        return Rig(self.home, self.up, self.clock, self.gpus)

    def until(
        self, deployment_id: str, state: DeploymentState, timeout_s: float = 30
    ) -> Deployment:
        """Supervise until it is in a state."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.deployments.get(deployment_id)
            if found.state is state:
                return found
            assert time.monotonic() < deadline, (found.state, found.reason)
            self.deployments.supervise()
            time.sleep(0.02)

    def running(self, made: DeploymentSpec | None = None) -> Deployment:
        """A deployment that runs."""
        deployment = self.deployments.create(WORKSPACE, made or spec())
        self.deployments.start(deployment.id)
        return self.until(deployment.id, DeploymentState.RUNNING)

    def launches(self, deployment_id: str) -> list[int]:
        """The process ids of every `up_fake` that was ever started on the folder."""
        path = self.deployments.get(deployment_id).folder / "launches"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        """End every process tree at once."""
        for deployment in self.deployments.list():
            if deployment.launcher is LauncherKind.LOCAL and deployment.folder.exists():
                end_all(deployment)
        self.database.close()

    def _command(self, site: Site) -> list[str]:
        return [sys.executable, str(self.up), str(site.config_file)]


def end_all(deployment: Deployment) -> None:
    """SIGTERM to every process that was started for the deployment, and wait."""
    for process in processes_of(deployment):
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + 30
    while processes_of(deployment):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass(frozen=True)
class Process:
    """A process of a deployment."""

    pid: int
    command: list[str]

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it ended."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return


def processes_of(deployment: Deployment) -> list[Process]:
    """The processes that stand for `kvrun up` of a deployment: those that name its file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")[:-1]
        except OSError:
            continue
        if str(deployment.config_file) in command and "kvrun" not in command:
            found.append(Process(int(folder.name), command))
    return found


class Users:
    """What uses a deployment whose daemon runs: a gateway and an engine, played by hand."""

    def __init__(self, rig: Rig, deployment: Deployment) -> None:
        self.config = rig.deployments.config_of(deployment.id)
        run = self.config.layout.run
        given = json.loads((run / "for-tests.json").read_text())
        self.socket = self.config.instance_socket
        self.gateway_token = given["gateway"]
        self.engine_token = self.config.layout.engine_token.read_text().strip()
        self.signer = ClaimSigner(
            Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["seed"]))
        )

    def open(self, tenant: str, session: str = "default") -> SessionGrant:
        """Open a session, so that it has a key."""
        return grant(self, tenant, session)  # type: ignore[arg-type]

    def engine(self) -> HandEngine:
        """An engine that is connected."""
        return HandEngine(self.socket, self.engine_token)

    def admit(
        self, engine: HandEngine, tenant: str, hashes: Sequence[bytes] = ()
    ) -> tuple[int, bytes]:
        """Admit a request; its handle, and the tier of each block."""
        granted = self.open(tenant)
        now = int(time.time())
        claim = Claim(
            workspace=self.config.deployment.workspace,
            deployment=self.config.deployment.name,
            tenant=tenant,
            session="default",
            generation=granted.generation,
            salt=granted.salt,
            request_id=secrets.token_hex(8),
            nonce=secrets.token_urlsafe(16),
            uses=1,
            issued_at=now,
            expires_at=now + 300,
        )
        answer = engine.match(
            self.signer.sign(claim), granted.salt, hashes, prompt_tokens=16 * max(1, len(hashes))
        )
        assert answer.handle, answer.reason
        self.request_id = claim.request_id
        return answer.handle, answer.tiers[0] if answer.tiers else b""

    def store(self, engine: HandEngine, tenant: str, blocks: int = 4) -> list[bytes]:
        """Have blocks of a tenant sealed; their hashes."""
        hashes = [bytes([number]) * 32 for number in range(1, blocks + 1)]
        handle, _ = self.admit(engine, tenant, hashes)
        engine.store(handle, [(name, secrets.token_bytes(BLOCK_BYTES)) for name in hashes])
        engine.finish(handle)

        def sealed() -> bool:
            asked = ask_daemon(self.config, "request", {"request_id": self.request_id})
            return bool(json.loads(asked)["sealed_blocks"] == blocks)

        eventually(sealed, "the blocks are sealed")
        return hashes
