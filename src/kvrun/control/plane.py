"""The control plane of one data folder: everything the collector's commands work with."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.control.alarm import Alarm
from kvrun.control.alerts import AlertBook
from kvrun.control.certificates import CertificateShelf
from kvrun.control.collector import Collector, Target
from kvrun.control.cosigner import open_cosigner
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory, log_folder
from kvrun.control.retention import DAY_S
from kvrun.control.sources import DaemonSource, FolderSource, LogSource
from kvrun.control.witness import Witness, WitnessUnavailableError, open_witnesses
from kvrun.erasure.archive import FOLDER_NAME, CertificateArchive
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file
from kvrun.storage import Patience, Storage, hold_objects, open_storage

_WAIT_S = 30.0
_CONNECT_S = 2.0


class ControlBusyError(KvrunError):
    """Another process works on the control plane's folder for too long."""

    exit_code = 3
    status = 409


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Opened from the configuration; only ``hold`` touches the disk before it is used."""

    config: KvrunConfig
    now: Callable[[], float] = time.time

    @property
    def folder(self) -> Path:
        """Where its state is."""
        return self.config.layout.control

    @property
    def memory(self) -> Memory:
        """What is remembered of each log."""
        return Memory(self.folder / "logs")

    @property
    def alerts(self) -> AlertBook:
        """Every alert."""
        return AlertBook(self.folder / "alerts")

    @property
    def journal(self) -> ControlJournal:
        """The control plane's own log."""
        return ControlJournal(self.config.layout, self.config.deployment.workspace, self.now)

    @property
    def alarm(self) -> Alarm:
        """Who raises and acknowledges alerts."""
        return Alarm(self.alerts, self.memory, self.journal, self.now)

    def storage(self, patience: Patience | None = None) -> Storage:
        """The workspace's Storage; ``patience`` with an object store. Raises StorageError."""
        settings = self.config.storage
        if settings.url is None:
            return open_storage(f"file://{self.config.layout.storage_root}")
        return open_storage(settings.url, settings.options, patience)

    def log_storage(self) -> Storage:
        """The same for collected logs: what is stored is held for as long as they are kept, where
        the bucket offers that. Raises StorageError."""
        storage, settings = self.storage(), self.config.storage
        keep_days = self.config.audit.retention_days
        if settings.object_lock == "off" or not keep_days:
            return storage
        return hold_objects(
            storage,
            settings.options,
            mode=settings.object_lock,
            keep_s=keep_days * DAY_S,
            now=self.now,
        )

    def collector(self) -> Collector:
        """A collector; call it while the folder is held."""
        return Collector(
            storage=self.log_storage(),
            memory=self.memory,
            alerts=self.alerts,
            journal=self.journal,
            cosigner=open_cosigner(self.config.layout, self.now),
            witnesses=self._witnesses(),
            now=self.now,
        )

    def certificates(self, storage: Storage | None = None) -> CertificateShelf:
        """The deployment's certificates in Storage, opened anew if none is given. Raises
        StorageError."""
        workspace, deployment = self.config.deployment.workspace, self.config.deployment.name
        index = self.folder / "certificates" / f"{log_folder(f'{workspace}/{deployment}')}.json"
        return CertificateShelf(storage or self.storage(), workspace, deployment, index)

    @property
    def archive(self) -> CertificateArchive:
        """The certificates that the deployment made, in its data folder."""
        deployment = self.config.deployment
        made = self.config.layout.storage(deployment.workspace, deployment.name)
        return CertificateArchive(made / FOLDER_NAME)

    def targets(self) -> list[Target]:
        """The instances whose logs are collected: the one of this data folder."""
        deployment = self.config.deployment
        return [Target(self._source(), deployment.workspace, deployment.name)]

    @contextmanager
    def hold(self, *, wait_s: float = _WAIT_S) -> Iterator[None]:
        """Work on the folder alone. Raises ControlBusyError when another one does for long."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = hold_file(self.folder / "lock", str(os.getpid()), wait_s=wait_s)
        except FileTakenError as error:
            raise ControlBusyError(
                f"process {error.holder or '?'} works on {self.folder}",
                hint="a collection is under way; try again when it is done",
            ) from None
        try:
            yield
        finally:
            os.close(descriptor)

    def _witnesses(self) -> Sequence[Witness]:
        try:
            return open_witnesses(self.config)
        except KvrunError as error:
            # The log is collected without them, and every collection says why.
            return [_UnusableWitnesses(error)]

    def _source(self) -> LogSource:
        layout = self.config.layout
        if _answers(self.config.instance_socket):
            return DaemonSource(layout.audit, self.config.instance_socket, layout.admin_token)
        return FolderSource(layout.audit)


@dataclass(frozen=True, slots=True)
class _UnusableWitnesses:
    """Stands for witnesses whose settings cannot be used."""

    error: KvrunError

    @property
    def name(self) -> str:
        """What is not there."""
        return "[witness]"

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """Say why."""
        raise WitnessUnavailableError(self.error.message)


def _answers(path: Path) -> bool:
    """Whether a daemon listens. Reading the folder of one that does not is harmless all the same:
    it is released only under the lock of the log's writer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(os.fspath(path))
        except OSError:
            return False
    return True
