"""What a bundle is about: deployments with their control planes, and the log of who may do what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.config.layout import DataLayout, folder_name
from kvrun.control.plane import ControlPlane
from kvrun.deployments.attaching import spec_of
from kvrun.deployments.model import Deployment, DeploymentSpec
from kvrun.deployments.service import Deployments
from kvrun.evidence.errors import EvidenceError


@dataclass(frozen=True, slots=True)
class Site:
    """One deployment. Times in seconds since 1970, 0 where they are not known."""

    id: str
    spec: DeploymentSpec
    launcher: str
    created_at: float
    deleted_at: float | None
    config: KvrunConfig

    @property
    def folder(self) -> str:
        """Its folder in the bundle."""
        return f"deployments/{folder_name(self.id)}"

    @property
    def plane(self) -> ControlPlane:
        """The control plane of its data folder."""
        return ControlPlane(self.config)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the bundle is about.

    ``home`` is the control plane's own folder: the key that signs bundles is there, and the log of
    people and deployments, of which the records of ``workspace_id`` count (and of ``deployment_id``
    alone, where one is set). ``installation`` is
    the control plane's own data folder where its fine-tunes are the workspace's.
    """

    workspace: str
    workspace_id: str
    deployment_id: str
    sites: tuple[Site, ...]
    home: Path
    installation: DataLayout | None = None

    @property
    def finetunes(self) -> Path | None:
        """Where the fine-tunes are whose evaluations may belong into the bundle."""
        return self.installation.finetunes if self.installation is not None else None

    @property
    def home_layout(self) -> DataLayout:
        """Where files are in the control plane's folder."""
        return DataLayout(self.home)


def scope_of_config(config: KvrunConfig, home: Path) -> Scope:
    """The deployment of one configuration, of which no control plane has to know."""
    deployment = config.deployment
    spec = spec_of(config, deployment.name)
    site = Site(deployment.name, spec, "own", 0.0, None, config)
    return Scope(deployment.workspace, "", "", (site,), home, config.layout)


def scope_of_workspace(
    deployments: Deployments,
    home: Path,
    *,
    workspace: str,
    workspace_id: str,
    deployment_id: str = "",
    installation: DataLayout | None = None,
) -> Scope:
    """A workspace's deployments, deleted ones included, or one of them.

    Raises EvidenceError where a configuration cannot be read: a bundle that lacks a deployment
    would say less than it seems to.
    """
    sites = [
        _site(deployments, item)
        for item in deployments.list(workspace_id)
        if deployment_id in ("", item.id)
    ]
    ordered = tuple(sorted(sites, key=lambda site: site.id))
    return Scope(workspace, workspace_id, deployment_id, ordered, home, installation)


def _site(deployments: Deployments, item: Deployment) -> Site:
    try:
        config = deployments.config_of(item)
    except OSError as error:
        raise EvidenceError(
            f"the configuration of {item.spec.name} cannot be read: {error.strerror}"
        ) from None
    return Site(item.id, item.spec, item.launcher.value, item.created_at, item.deleted_at, config)
