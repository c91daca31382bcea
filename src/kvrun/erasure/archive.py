"""Certificates in a deployment's folder of Storage, and finding them again by reference."""

import re
from collections.abc import Iterator
from pathlib import Path

from kvrun.durable import replace_private_file
from kvrun.erasure.certificate import ErasureStatement, decode_statement
from kvrun.erasure.document import MAX_CERTIFICATE_BYTES, parse_certificate, payload_of
from kvrun.erasure.errors import CertificateFormatError, ErasureError

FOLDER_NAME = "certificates"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class CertificateArchive:
    """The certificates below ``folder`` (0700, made at the first one). One file a certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, certificate_id: str) -> Path:
        """Where a certificate of that id is, or would be. Raises ErasureError for a bad id."""
        if not _ID.fullmatch(certificate_id):
            raise ErasureError(f"{certificate_id[:40]!r} is no certificate id")
        return self.folder / f"{certificate_id}.json"

    def put(self, certificate_id: str, content: bytes) -> Path:
        """Store a certificate durably. Raises ErasureError when it cannot be written."""
        path = self.path(certificate_id)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private_file(path, content)
        except OSError as error:
            raise ErasureError(
                f"the certificate {path} cannot be written: {error.strerror}",
                hint="The keys are destroyed. Free some space; the certificate follows.",
            ) from error
        return path

    def get(self, certificate_id: str) -> bytes | None:
        """A certificate's bytes, if it is there."""
        try:
            with self.path(certificate_id).open("rb") as file:
                return file.read(MAX_CERTIFICATE_BYTES + 1)
        except FileNotFoundError:
            return None

    def ids(self) -> list[str]:
        """The ids of all certificates that are there, in order."""
        paths = self.folder.glob("*.json") if self.folder.is_dir() else []
        return sorted(path.stem for path in paths if _ID.fullmatch(path.stem))

    def statements(self) -> Iterator[ErasureStatement]:
        """What the certificates state, oldest first; files that are none are passed over."""
        found = []
        for certificate_id in self.ids():
            try:
                data = self.path(certificate_id).read_bytes()
                found.append(decode_statement(payload_of(parse_certificate(data))))
            except (CertificateFormatError, OSError):
                continue
        yield from sorted(found, key=lambda statement: statement.issued_at)
