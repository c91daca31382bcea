"""What a deployment is: the words and data that everything here shares. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class DeploymentState(StrEnum):
    """Where a deployment is in its life; ``machine`` says what leads from one to the next."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    """Its processes run, but it does not answer."""
    DRAINING = "draining"
    """It takes no new requests, and stops when the last one is done."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    """Its processes ended by themselves; ``restart_at`` says when they are started again."""
    DELETING = "deleting"
    DELETED = "deleted"
    """Its keys are destroyed and its cached ciphertext is gone; log and record stay, read only."""


class Wanted(StrEnum):
    """What its people last asked for; supervision leads there."""

    RUN = "run"
    STOP = "stop"
    DELETE = "delete"


class LauncherKind(StrEnum):
    """Who runs its processes."""

    LOCAL = "local"
    """The control plane, as a detached process tree on this machine."""
    ATTACHED = "attached"
    """Somebody else, who registered it with a token."""
    OWN = "own"
    """The ``kvrun up`` that started this control plane."""


DETACHED = "detached: its keys and data stay with whoever runs it"
"""The reason of a deployment that was forgotten here."""


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """What people choose. Sizes in bytes; ``context_window`` in tokens, None for the model's own.

    ``multi_tenant``: a product with customers in it, so that every request must name its tenant;
    else an internal tool that is one tenant where nobody is named. ``gpu_ids`` are indexes as
    nvidia-smi shows them; none: the engine takes what it finds. ``settings`` are further settings
    of ``kvrun.toml`` by dotted key; ``spec.FREE_SETTINGS`` lists which.
    """

    name: str
    model: str
    engine: str = "vllm"
    stateless: bool = False
    multi_tenant: bool
    context_window: int | None = None
    memory_bytes: int = 2**30
    disk_bytes: int = 10 * 2**30
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    allow_shared_gpu: bool = False
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignProcess:
    """A process that used a GPU and is not the deployment's. ``memory_bytes`` 0: unknown."""

    pid: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class GpuNote:
    """One GPU as it was found when the deployment was started last."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    foreign: tuple[ForeignProcess, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether others used it too."""
        return bool(self.foreign)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One deployment. Times in seconds since 1970, None where it has not happened.

    One that the control plane made has its id as its name in keys, log and Storage, below the
    workspace's id; others keep the names that their own ``kvrun.toml`` gives them.
    ``instance`` counts rebuilds from 1, ``restarts`` the crashes since somebody started it last.
    ``certificates`` are the ids of those that its deletion was certified with.
    """

    id: str
    workspace_id: str
    spec: DeploymentSpec
    state: DeploymentState
    wanted: Wanted
    reason: str
    launcher: LauncherKind
    folder: Path
    config_file: Path
    endpoint: str
    instance: int
    restarts: int
    created_at: float
    state_since: float
    started_at: float | None = None
    restart_at: float | None = None
    deleted_at: float | None = None
    gpu_notes: tuple[GpuNote, ...] = ()
    certificates: tuple[str, ...] = ()

    @property
    def forgotten(self) -> bool:
        """Whether it was detached: its record has ended, and nothing of it was deleted."""
        return self.state is DeploymentState.DELETED and self.reason == DETACHED

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed any more."""
        return self.state is DeploymentState.DELETED

    @property
    def shares_gpu(self) -> bool:
        """Whether others were on one of its GPUs when it started; said on every page."""
        return any(note.shared for note in self.gpu_notes)
