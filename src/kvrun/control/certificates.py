"""Erasure certificates in the workspace's Storage: copied there once, and found there again.

A deployment makes its certificates in its data folder. Each is copied as it is to
``<workspace>/deployments/<deployment>/certificates/<id>.json``, and nothing there is ever replaced.
Beside it, ``<id>.log-proof`` shows it in the control plane's own log. What is there is remembered,
so a round reads only new ones; now and then it looks whether all of them are still there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.config.layout import storage_prefix
from kvrun.durable import replace_private_file
from kvrun.erasure.archive import FOLDER_NAME, CertificateArchive
from kvrun.erasure.certificate import decode_statement
from kvrun.erasure.document import MAX_CERTIFICATE_BYTES, parse_certificate, payload_of
from kvrun.erasure.errors import CertificateFormatError, ErasureError
from kvrun.erasure.logproof import LogInclusion, make_log_proof, parse_log_proof
from kvrun.storage import ObjectExistsError, ObjectMissingError, Storage

LOOK_EVERY_S = 3600.0
_log = logging.getLogger(__name__)
_OBJECT = re.compile(r"([A-Za-z0-9_-]{1,64})(\.json|\.log-proof)")
_CERTIFICATE, _PROOF = ".json", ".log-proof"
# Each proof hashes the whole log; the rest follows with the next rounds.
_PROVEN_AT_ONCE = 20


class StoredCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate in Storage. ``digest`` (hex) is the SHA-256 of its statement, as the ledger and
    parent certificates have it; ``issued_at`` as it states it; ``claim_class`` "" where nothing
    was held; ``children``: how many certificates of deployments it lists."""

    id: str
    kind: str
    reference: str
    issued_at: str
    claim_class: str
    keys: int
    digest: str
    children: int = 0


@dataclass(frozen=True, slots=True)
class CertificateProblem:
    """Something that a person must see about the object ``name``, with the bytes that show it."""

    name: str
    detail: str
    files: dict[str, bytes]


@dataclass(slots=True)
class Shelved:
    """What a round did: how many were stored now, and what was wrong."""

    stored: int = 0
    problems: list[CertificateProblem] = field(default_factory=list)


class CertificateShelf:
    """One deployment's certificates in ``storage``, remembered in the file ``index``."""

    def __init__(self, storage: Storage, workspace: str, deployment: str, index: Path) -> None:
        self._storage = storage
        self._index = index
        self.folder = f"{storage_prefix(workspace, deployment)}/{FOLDER_NAME}"

    def take(self, archive: CertificateArchive, now: Callable[[], float]) -> Shelved:
        """Copy what is new in ``archive``, and see to what is there; the caller is alone here.

        Raises StorageError: what was stored until then is remembered, and the rest comes next time.
        """
        known, done = self._load(), Shelved()
        try:
            if not 0 <= now() - known.looked_at < LOOK_EVERY_S:
                self._look(known, archive, done)
                known.looked_at = now()
            for certificate_id in archive.ids():
                if certificate_id not in known.certificates:
                    self._copy(certificate_id, archive, known, done)
        finally:
            self._save(known)
        return done

    def prove(
        self,
        archive: CertificateArchive,
        certify: Callable[[Mapping[str, str]], Mapping[str, LogInclusion]],
    ) -> None:
        """Put the proof that the control plane's log has it beside each certificate without one.

        Only of those that the deployment made and has in ``archive``: what else lies in Storage is
        anybody's word. ``certify`` puts certificates, by id with the digests of their statements,
        on record there, each once. Some at a time. The caller is alone here. Raises StorageError,
        and what ``certify`` does.
        """
        known = self._load()
        waiting = known.certificates.keys() & set(archive.ids()) - known.proven
        new = sorted(
            one
            for one in waiting
            if _payload(archive.get(one) or b"") == known.certificates[one].digest
        )[:_PROVEN_AT_ONCE]
        if not new:
            return
        proofs = certify({one: known.certificates[one].digest for one in new})
        try:
            for certificate_id, inclusion in proofs.items():
                name = self._name(certificate_id, _PROOF)
                digest = known.certificates[certificate_id].digest
                try:
                    self._storage.create(name, make_log_proof(inclusion))
                except ObjectExistsError:  # where a crash came in between, it is there
                    if not _proves(self._read(certificate_id, _PROOF), digest):
                        _log.error("%s in Storage is not the proof that was made", name)
                known.proven.add(certificate_id)
        finally:
            self._save(known)

    def find(self, reference: str = "") -> list[StoredCertificate]:
        """What is in Storage, oldest first; only those with ``reference``, if one is given.

        Objects there that are no certificates are passed over. Raises StorageError.
        """
        known = self._load().certificates
        found = []
        for certificate_id in self._names():
            stored = known.get(certificate_id)
            if stored is None:
                stored = _described(certificate_id, self._read(certificate_id))
            if stored is not None and reference in ("", stored.reference):
                found.append(stored)
        return sorted(found, key=lambda stored: (stored.issued_at, stored.id))

    def get(self, certificate_id: str) -> bytes:
        """A certificate as it is stored. Raises ErasureError where there is none, StorageError."""
        data = self._read(certificate_id)
        if data is None:
            raise ErasureError(
                f"{self._storage.where} has no certificate {certificate_id[:64]!r} of this"
                " deployment",
                hint="kvrun certificate list shows those that are there",
            )
        return data

    def proof(self, certificate_id: str) -> bytes | None:
        """The proof that the control plane's log has the certificate; None before it is there.

        Raises StorageError.
        """
        return self._read(certificate_id, _PROOF)

    def _look(self, known: _Index, archive: CertificateArchive, done: Shelved) -> None:
        """Find what came from elsewhere, and what is gone."""
        there = set(self._names())
        known.proven &= set(self._names(_PROOF))
        for certificate_id in sorted(there - known.certificates.keys()):
            stored = _described(certificate_id, self._read(certificate_id))
            own = archive.get(certificate_id)
            if stored is not None and (own is None or _payload(own) == stored.digest):
                known.certificates[certificate_id] = stored
        for certificate_id in sorted(known.certificates.keys() - there):
            del known.certificates[certificate_id]
            own = archive.get(certificate_id)
            detail = f"the certificate {certificate_id} is gone from Storage" + (
                "; it is stored again" if own is not None else ", and the data folder has none"
            )
            files = {"certificate.json": own} if own is not None else {}
            done.problems.append(CertificateProblem(self._name(certificate_id), detail, files))

    def _copy(
        self, certificate_id: str, archive: CertificateArchive, known: _Index, done: Shelved
    ) -> None:
        name, data = self._name(certificate_id), archive.get(certificate_id)
        stored = _described(certificate_id, data)
        if data is None or stored is None:
            if data is not None:
                what = f"{archive.path(certificate_id)} is no certificate; it is not stored"
                done.problems.append(CertificateProblem(name, what, {}))
            return
        try:
            self._storage.create(name, data)
            done.stored += 1
        except ObjectExistsError:
            there = self._read(certificate_id) or b""
            # A crash may have had the same statement put beside a newer proof that it is logged.
            if _payload(there) != stored.digest:
                what = f"{name} in Storage is not the certificate that the deployment made"
                files = {"certificate.json": data, "in-storage": there}
                done.problems.append(CertificateProblem(name, what, files))
                return
        known.certificates[certificate_id] = stored

    def _names(self, suffix: str = _CERTIFICATE) -> Iterator[str]:
        for item in self._storage.list(self.folder):
            match = _OBJECT.fullmatch(item.name.removeprefix(f"{self.folder}/"))
            if match and match[2] == suffix:
                yield match[1]

    def _name(self, certificate_id: str, suffix: str = _CERTIFICATE) -> str:
        return f"{self.folder}/{certificate_id}{suffix}"

    def _read(self, certificate_id: str, suffix: str = _CERTIFICATE) -> bytes | None:
        if not _OBJECT.fullmatch(f"{certificate_id}{suffix}"):
            return None
        name = self._name(certificate_id, suffix)
        try:
            return self._storage.get_range(name, 0, MAX_CERTIFICATE_BYTES + 1)
        except ObjectMissingError:
            return None

    def _load(self) -> _Index:
        """What is remembered. It can be had again from Storage, so a damaged file is a new one."""
        try:
            return msgspec.json.decode(self._index.read_bytes(), type=_Index)
        except (OSError, msgspec.MsgspecError):
            return _Index()

    def _save(self, known: _Index) -> None:
        data = msgspec.json.encode(known, order="sorted") + b"\n"
        if not self._index.exists() or self._index.read_bytes() != data:
            self._index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(self._index, data)


class _Index(msgspec.Struct):
    looked_at: float = 0.0
    certificates: dict[str, StoredCertificate] = {}
    proven: set[str] = set()


def _described(certificate_id: str, data: bytes | None) -> StoredCertificate | None:
    """What a certificate is; None for what is none, or one that bears another's name."""
    try:
        payload = payload_of(parse_certificate(data or b""))
        statement = decode_statement(payload)
    except CertificateFormatError:
        return None
    if statement.id != certificate_id:
        return None
    return StoredCertificate(
        id=statement.id,
        kind=statement.request.kind.value,
        reference=statement.request.reference,
        issued_at=statement.issued_at,
        claim_class=statement.claim_class.value if statement.claim_class else "",
        keys=len(statement.keys),
        digest=sha256(payload).hexdigest(),
        children=len(statement.children),
    )


def _proves(data: bytes | None, digest: str) -> bool:
    try:
        return parse_log_proof(data or b"").record.digest == digest
    except CertificateFormatError:
        return False


def _payload(data: bytes) -> str:
    try:
        return sha256(payload_of(parse_certificate(data))).hexdigest()
    except CertificateFormatError:
        return ""
