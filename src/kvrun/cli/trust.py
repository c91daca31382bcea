"""``kvrun trust``: the public keys that verifiers need, to exchange out of band."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvrun.audit.files import read_keys
from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.trust import TrustAnchor, fingerprints, parse_anchor
from kvrun.launch.trust import own_anchor

app = typer.Typer(no_args_is_help=True)


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
    witnesses = read_keys(witness_key) if witness_key is not None else ()
    sys.stdout.write(own_anchor(read_config(config_file), witnesses).decode())


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
