"""A workspace's Storage as pages show it: one tree over all its deployments.

Names begin with ``deployments/<id>/``. Below that is what each deployment has in its own folder and
in the workspace's object store, which hold different things or the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvrun.config.layout import storage_prefix
from kvrun.control.plane import ControlPlane
from kvrun.deployments.each import Problem, read_each
from kvrun.deployments.errors import DeploymentNotFoundError
from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement
from kvrun.instance.parts import certificates_folder
from kvrun.storage import ObjectMissingError, Storage, open_storage

TOP = "deployments"
MAX_READ_BYTES = 256 * 2**20
_PART = r"(?!\.+(?:/|$))[A-Za-z0-9_%=@.-]+"
_KEY = re.compile(rf"{_PART}(?:/{_PART}){{0,31}}")


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


@dataclass(frozen=True, slots=True)
class CertificateList:
    """Certificates; ``problems`` are deployments whose certificates could not be read."""

    rows: tuple[CertificateRow, ...]
    problems: tuple[Problem, ...]


class StorageViews:
    """Reads Storage; a key is a path such as ``deployments/<id>/audit/<log>/<file>``."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def browse(
        self, workspace_id: str, prefix: str = "", cursor: str = "", *, limit: int = 200
    ) -> StoragePage:
        """The entries directly below a folder, by name. Raises StorageError."""
        prefix = prefix.strip("/")
        entries = sorted(self._entries(workspace_id, prefix), key=lambda entry: entry.name)
        left = [entry for entry in entries if entry.name > cursor]
        shown = tuple(left[: max(1, limit)])
        return StoragePage(prefix, shown, shown[-1].name if len(left) > len(shown) else "")

    def read(self, workspace_id: str, key: str) -> bytes:
        """An object's bytes; a sealed block is ciphertext.

        Raises ObjectMissingError, or StorageError for one that is too large for a page.
        """
        deployment, rest = self._split(workspace_id, key.strip("/"))
        if deployment is None or not rest:
            raise ObjectMissingError(f"Storage has no object {key[:200]!r}")
        for store, folder in self._stores(deployment):
            name = f"{folder}/{rest}"
            found = store.find(name)
            if found is not None:
                if found.size_bytes > MAX_READ_BYTES:
                    raise ObjectMissingError(
                        f"{key[:200]} has {found.size_bytes} bytes: too many to be shown here",
                        hint="Read it from Storage itself.",
                    )
                return store.get(name)
        raise ObjectMissingError(f"Storage has no object {key[:200]!r}")

    def certificates(self, workspace_id: str, deployment_id: str | None = None) -> CertificateList:
        """Certificates of a workspace or of one deployment, newest first."""

        def read(item: Deployment) -> Iterator[CertificateRow]:
            for statement in self._archive(item).statements():
                yield CertificateRow(item.id, statement.id, statement)

        rows, problems = read_each(self._deployments, workspace_id, read, deployment_id)
        newest = sorted(rows, key=lambda row: row.statement.issued_at, reverse=True)
        return CertificateList(tuple(newest), problems)

    def certificate(self, deployment_id: str, certificate_id: str) -> bytes:
        """One certificate as it is checked. Raises ObjectMissingError, or ErasureError."""
        found = self._archive(deployment_id).get(certificate_id)
        if found is None:
            raise ObjectMissingError(f"there is no certificate {certificate_id[:80]!r}")
        return found

    def _entries(self, workspace_id: str, prefix: str) -> Iterator[Entry]:
        if not prefix:
            yield Entry(TOP, TOP, True, 0, "One folder for each deployment")
            return
        if prefix == TOP:
            for item in self._deployments.list(workspace_id):
                yield Entry(f"{TOP}/{item.id}", item.id, True, 0, item.spec.name)
            return
        deployment, rest = self._split(workspace_id, prefix)
        if deployment is None:
            return
        seen: dict[str, Entry] = {}
        for store, folder in self._stores(deployment):
            at = f"{folder}/{rest}" if rest else folder
            folders, objects = store.entries(at)
            found = [(name, True, 0) for name in folders]
            found += [(item.name, False, item.size_bytes) for item in objects]
            for path, is_folder, size in found:
                name = path.rstrip("/").rpartition("/")[2]
                note = _NOTES.get((rest or name).partition("/")[0], "")
                seen.setdefault(name, Entry(f"{prefix}/{name}", name, is_folder, size, note))
        yield from seen.values()

    def _split(self, workspace_id: str, key: str) -> tuple[Deployment | None, str]:
        """The deployment that a key begins with, if it is of this workspace, and the rest."""
        top, _, below = key.partition("/")
        deployment_id, _, rest = below.partition("/")
        if top != TOP or not deployment_id or not _KEY.fullmatch(key):
            return None, ""
        try:
            found = self._deployments.get(deployment_id)
        except DeploymentNotFoundError:
            return None, ""
        return (found, rest) if found.workspace_id == workspace_id else (None, "")

    def _stores(self, deployment: Deployment) -> Iterator[tuple[Storage, str]]:
        config = self._deployments.config_of(deployment)
        folder = storage_prefix(config.deployment.workspace, config.deployment.name)
        if config.layout.storage_root.is_dir():
            yield open_storage(f"file://{config.layout.storage_root}"), folder
        if config.storage.url is not None:
            yield ControlPlane(config).storage(), folder

    def _archive(self, deployment: str | Deployment) -> CertificateArchive:
        return CertificateArchive(certificates_folder(self._deployments.config_of(deployment)))


_NOTES = {
    "isolation": "Results of isolation self-tests, signed.",
    "kv": "Sealed blocks: ciphertext. Only this deployment's instance daemon could open one, with "
    "the key of the session that it belongs to; after an erasure nobody can.",
    "audit": "The collected audit log: readable, with references in place of ids. Reading it "
    "straight from Storage is not logged.",
    "certificates": "Erasure certificates: readable, and checked by kvrun verify.",
    "quarantine": "Sealed blocks that did not open under their session's key: ciphertext, kept to "
    "be looked at.",
    "keys": "Copies of the wrapped keys, sealed under the deployment's root: worthless without it.",
}
