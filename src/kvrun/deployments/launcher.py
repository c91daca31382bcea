"""The seam between deployments and what runs their processes: this machine, or a cluster later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvrun.config import KvrunConfig
from kvrun.deployments.machine import Seen


@dataclass(frozen=True, slots=True)
class Site:
    """Where a deployment lives: its folder, its configuration file, and that file's content."""

    deployment_id: str
    folder: Path
    config_file: Path
    config: KvrunConfig


class Launcher(Protocol):
    """Runs the process tree of a deployment somewhere. Every call may come again at any time.

    One for Kubernetes or Ray keeps what it has to remember (a pod's or an actor's name) where
    ``observe`` finds it after the control plane was killed: in the cluster, under the
    deployment's id and the attempt's number.
    """

    def launch(self, site: Site, attempt: int) -> None:
        """Start ``kvrun up`` for the site unless it runs; returns before it is ready.

        Raises KvrunError when it cannot be started.
        """

    def observe(self, site: Site) -> Seen:
        """What runs there now. Raises nothing: what cannot be seen is not alive."""

    def terminate(self, site: Site) -> None:
        """Ask it to stop: requests end or are cut off, keys are wiped, the log is closed."""

    def kill(self, site: Site) -> None:
        """End it at once."""
