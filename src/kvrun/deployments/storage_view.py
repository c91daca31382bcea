"""A workspace's Storage as pages show it: one tree over all its deployments."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.deployments.service import Deployments
from kvrun.erasure.certificate import ErasureStatement


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder or an object. ``note`` says what it is and who could read it."""

    key: str
    name: str
    folder: bool
    size_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class StoragePage:
    """Some entries below ``prefix``; ``cursor`` goes on, empty at the end."""

    prefix: str
    entries: tuple[Entry, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class CertificateRow:
    """A certificate of one deployment and what it states."""

    deployment_id: str
    certificate_id: str
    statement: ErasureStatement


class StorageViews:
    """Reads Storage. Keys are ``deployments/<id>/{kv,audit,certificates}/...``."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def browse(
        self, workspace_id: str, prefix: str = "", cursor: str = "", *, limit: int = 200
    ) -> StoragePage:
        """The entries directly below a folder, by name."""
        raise NotImplementedError

    def read(self, workspace_id: str, key: str) -> bytes:
        """An object's bytes; a sealed block is ciphertext. Raises ObjectMissingError."""
        raise NotImplementedError

    def certificates(
        self, workspace_id: str, deployment_id: str | None = None
    ) -> tuple[CertificateRow, ...]:
        """Certificates of a workspace or of one deployment, newest first."""
        raise NotImplementedError

    def certificate(self, deployment_id: str, certificate_id: str) -> bytes:
        """One certificate as it is checked. Raises ObjectMissingError."""
        raise NotImplementedError
