"""``kvrun trust``: the public keys that verifiers need, to exchange out of band."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.files import read_keys
from kvrun.audit.note import ED25519, VerifierKey
from kvrun.audit.segment import SIGNER_NAME
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.config.layout import DataLayout
from kvrun.erasure.errors import CertificateFormatError, ErasureError
from kvrun.erasure.trust import TrustAnchor, fingerprints, make_anchor, parse_anchor
from kvrun.keys.signing import KeyPurpose, SigningKey, SigningRing

app = typer.Typer(no_args_is_help=True)

_EXPORTED = (KeyPurpose.CERTIFICATE, KeyPurpose.CHECKPOINT)


@app.callback()
def trust() -> None:
    """Trust anchors: the public keys with which others check certificates and logs."""


@app.command()
def export(
    witness_key: Annotated[
        Path | None,
        typer.Option(help="File with verifier keys of further witnesses, one a line."),
    ] = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Print this deployment's trust anchor: keys of certificates, logs and configured witnesses.

    Revoked keys are there too, with the time of their revocation. Hand the anchor to verifiers on
    another way than certificates, and compare fingerprints by voice.

    Example: kvrun trust export > anchor.json
    """
    config = read_config(config_file)
    layout = config.layout
    keys = own_keys(layout)
    if not any(key.purpose is KeyPurpose.CERTIFICATE for key in keys):
        raise ErasureError(
            f"there is no certificate key in {layout.signing_keys} yet",
            hint="It is made when the daemon starts for the first time: `kvrun up`.",
        )
    files = filter(None, (config.witness.keys_file, witness_key))
    witnesses = [key for file in files for key in read_keys(file)]
    public = [key.public() for key in keys if key.purpose in _EXPORTED]
    sys.stdout.write(make_anchor(public, log_keys(layout, keys), witnesses).decode())


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trust anchor.")],
    as_json: AsJson = False,
) -> None:
    """Print the fingerprints of a trust anchor's keys, to compare with the operator's.

    Example: kvrun trust show anchor.json
    """
    rows = fingerprints(read_anchor(file))
    if as_json:
        print_json(rows)
        return
    listing = table("key", "fingerprint (SHA-256 of the public key)", "valid")
    for row in rows:
        listing.add_row(f"{row.what}\n{row.name}", row.fingerprint, row.validity)
    console().print(listing)


def read_anchor(path: Path) -> TrustAnchor:
    """The trust anchor in a file. Raises CertificateFormatError."""
    try:
        return parse_anchor(path.read_bytes())
    except OSError as error:
        raise CertificateFormatError(
            f"the trust anchor {path} cannot be read: {error.strerror}"
        ) from None


def own_keys(layout: DataLayout) -> list[SigningKey]:
    """The signing keys in a data folder, of instance and control plane; no folder is created."""
    folders = sorted({item.parent for item in layout.control.glob("*/*.key.json")})
    folders = [folder for folder in (layout.signing_keys, *folders) if folder.is_dir()]
    rings = [SigningRing(folder, now=time.time) for folder in folders]
    return [key for ring in rings for key in ring.all_keys()]


def log_keys(layout: DataLayout, keys: list[SigningKey]) -> list[VerifierKey]:
    """Verifier keys of the logs that are written here: every checkpoint key that is not revoked.

    A log's id comes from the key file beside it, which counts only where it names a key of ours.
    """
    ours = [key for key in keys if key.purpose is KeyPurpose.CHECKPOINT]
    raw = {key.key_id: key.private_key.public_key().public_bytes_raw() for key in ours}
    usable = [raw[key.key_id] for key in ours if key.revoked_at is None]
    own = (layout.audit / SIGNER_NAME, layout.erasure / "ledger" / SIGNER_NAME)
    files = [*own, *sorted(layout.control.glob(f"*/{SIGNER_NAME}"))]
    stated = [key for path in files if path.is_file() for key in read_keys(path)]
    names = sorted({key.name for key in stated if key.public_key in raw.values()})
    return [VerifierKey(name, ED25519, public) for name in names for public in usable]
