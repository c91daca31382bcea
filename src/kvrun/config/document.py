"""The whole of ``kvrun.toml`` as one immutable object."""

import os
from pathlib import Path
from typing import Self

from pydantic import model_validator

from kvrun.config.alerts import AlertsSection
from kvrun.config.audit import AuditSection
from kvrun.config.control import ControlSection
from kvrun.config.deployment import DeploymentSection
from kvrun.config.engine import EngineSection
from kvrun.config.erasure import ErasureSection
from kvrun.config.gateway import GatewaySettings
from kvrun.config.instance import InstanceSection
from kvrun.config.isolation import IsolationSection
from kvrun.config.keys import KeysSection
from kvrun.config.layout import UNIX_PATH_MAX, DataLayout
from kvrun.config.log import LogSection
from kvrun.config.residency import ResidencySection
from kvrun.config.storage import StorageSection
from kvrun.config.values import Section
from kvrun.config.witness import WitnessSection


class KvrunConfig(Section):
    """Every section; ``parse_config`` fills what is missing and roots relative paths."""

    deployment: DeploymentSection = DeploymentSection()
    instance: InstanceSection = InstanceSection()
    keys: KeysSection = KeysSection()
    audit: AuditSection = AuditSection()
    alerts: AlertsSection = AlertsSection()
    log: LogSection = LogSection()
    witness: WitnessSection = WitnessSection()
    storage: StorageSection = StorageSection()
    erasure: ErasureSection = ErasureSection()
    isolation: IsolationSection = IsolationSection()
    residency: ResidencySection = ResidencySection()
    gateway: GatewaySettings
    engine: EngineSection = EngineSection()
    control: ControlSection = ControlSection()

    @property
    def layout(self) -> DataLayout:
        """The paths below the data folder."""
        return DataLayout(self.instance.data_dir)

    @property
    def instance_socket(self) -> Path:
        """The daemon's socket."""
        return self.instance.socket or self.layout.instance_socket

    @property
    def key_socket(self) -> Path:
        """The key service's socket, where the keys are in one."""
        return self.keys.socket or self.layout.key_socket

    @property
    def control_home(self) -> Path:
        """The folder of the control plane's database and of the deployments that it makes."""
        return self.control.home or self.layout.data_dir / "control-plane"

    @property
    def object_tier(self) -> bool:
        """Whether sealed blocks go to Storage too."""
        url, asked = self.storage.url, self.instance.object_tier
        if url is None or self.deployment.stateless or asked == "off":
            return False
        return asked == "on" or not url.startswith("file:")

    @model_validator(mode="after")
    def _object_tier_has_a_place(self) -> Self:
        if self.instance.object_tier != "on":
            return self
        if self.storage.url is None:
            raise ValueError("instance.object_tier = 'on' needs storage.url: where to keep blocks")
        own = self.layout.storage_root.absolute()
        folder = self.storage.url.removeprefix("file://")
        if folder != self.storage.url and Path(folder).absolute() == own:
            raise ValueError(
                f"storage.url is the data folder's own {own}, where the disk tier is; the object "
                "tier needs another folder"
            )
        return self

    @model_validator(mode="after")
    def _what_is_held_has_an_end(self) -> Self:
        if self.storage.object_lock == "compliance" and not self.audit.retention_days:
            raise ValueError(
                'storage.object_lock = "compliance" needs audit.retention_days of at least 1: '
                "0 keeps collected logs for ever, and nothing can be held for ever"
            )
        return self

    @model_validator(mode="after")
    def _sockets_fit(self) -> Self:
        sockets = [self.instance_socket, self.key_socket]
        if self.engine.transport == "unix":
            sockets.append(self.layout.engine_socket)
        for path in sockets:
            length = len(os.fsencode(path))
            if length > UNIX_PATH_MAX:
                raise ValueError(
                    f"instance.data_dir = {str(self.instance.data_dir)!r} is too long: the socket "
                    f"{path} would have {length} bytes and Linux allows {UNIX_PATH_MAX}; "
                    "use a shorter folder"
                )
        return self
