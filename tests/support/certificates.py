"""Certificate authorities of a test's own, and what they vouch for."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates of servers; its own is in ``file``."""

    folder: Path
    name: str
    _key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.file = self.folder / f"{self.name}.pem"
        own = _named(self.name, self.name, self._key.public_key(), days=1)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, host: str, *, days: int = 1) -> tuple[Path, Path]:
        """Files of certificate and key for a name or address, valid until so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        made = _named(host, self.name, key.public_key(), days=days)
        made = made.add_extension(x509.SubjectAlternativeName([named]), critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        files = (self.folder / f"{self.name}-{host}.crt", self.folder / f"{self.name}-{host}.key")
        files[0].write_bytes(signed.public_bytes(Encoding.PEM))
        files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def _named(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    subject_name, issuer_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, issuer)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject_name)
        .issuer_name(issuer_name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 9 * _DAY)
        .not_valid_after(now + days * _DAY)
    )
