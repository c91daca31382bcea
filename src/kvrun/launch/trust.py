"""The trust anchor of a data folder: the public keys with which others check what it made."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from kvrun.audit.files import read_keys
from kvrun.audit.note import ED25519, VerifierKey
from kvrun.audit.segment import SIGNER_NAME
from kvrun.config import KvrunConfig
from kvrun.config.layout import DataLayout
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.trust import make_anchor
from kvrun.keys.signing import KeyPurpose, SigningKey, SigningRing

EXPORTED_PURPOSES = (KeyPurpose.CERTIFICATE, KeyPurpose.CHECKPOINT, KeyPurpose.EVIDENCE)
"""The keys that an anchor has."""


def own_anchor(config: KvrunConfig, witnesses: Iterable[VerifierKey] = ()) -> bytes:
    """The anchor file's bytes: keys of certificates, of logs, and of the configured witnesses.

    ``witnesses`` are further ones. Raises ErasureError where no certificate key exists yet.
    """
    layout = config.layout
    keys = own_keys(layout)
    if not any(key.purpose is KeyPurpose.CERTIFICATE for key in keys):
        raise ErasureError(
            f"there is no certificate key in {layout.signing_keys} yet",
            hint="It is made when the daemon starts for the first time: `kvrun up`.",
        )
    named = config.witness.keys_file
    known = [*(read_keys(named) if named is not None else ()), *witnesses]
    public = [key.public() for key in keys if key.purpose in EXPORTED_PURPOSES]
    return make_anchor(public, log_keys(layout), known)


def own_keys(layout: DataLayout) -> list[SigningKey]:
    """The signing keys in a data folder, of instance and control plane; no folder is created."""
    return _keys_in([layout.signing_keys, *_control_rings(layout)])


def log_keys(layout: DataLayout) -> list[VerifierKey]:
    """Verifier keys of the logs that are written here: every checkpoint key that is not revoked.

    A log's id comes from the key file beside it, which counts only where it names a key of the ring
    that signs it: the instance's keys do not speak for the control plane's log, nor its for theirs.
    """
    instance = [layout.audit / SIGNER_NAME, layout.erasure / "ledger" / SIGNER_NAME]
    control = sorted(layout.control.glob(f"*/{SIGNER_NAME}"))
    found = {
        *_speaking(_keys_in([layout.signing_keys]), instance),
        *_speaking(_keys_in(_control_rings(layout)), control),
    }
    return sorted(found, key=lambda key: (key.name, key.public_key))


def _control_rings(layout: DataLayout) -> list[Path]:
    return sorted({item.parent for item in layout.control.glob("*/*.key.json")})


def _keys_in(folders: list[Path]) -> list[SigningKey]:
    rings = [SigningRing(folder, now=time.time) for folder in folders if folder.is_dir()]
    return [key for ring in rings for key in ring.all_keys()]


def _speaking(keys: list[SigningKey], files: list[Path]) -> list[VerifierKey]:
    """Those of ``keys`` that sign logs, for each log of which a file states one of them."""
    ours = [key for key in keys if key.purpose is KeyPurpose.CHECKPOINT]
    raw = {key.key_id: key.private_key.public_key().public_bytes_raw() for key in ours}
    usable = [raw[key.key_id] for key in ours if key.revoked_at is None]
    stated = [key for path in files if path.is_file() for key in read_keys(path)]
    names = sorted({key.name for key in stated if key.public_key in raw.values()})
    return [VerifierKey(name, ED25519, public) for name in names for public in usable]
