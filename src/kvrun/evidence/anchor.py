"""The public keys of everything that a bundle is signed or countersigned with.

One trust anchor over all its deployments and the control plane: their keys of certificates, of
logs, of evidence, and those with which collectors countersign.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvrun.audit.files import read_keys
from kvrun.audit.note import VerifierKey, parse_verifier_key
from kvrun.config.layout import DataLayout
from kvrun.control.cosigner import VERIFIER_KEYS
from kvrun.erasure.trust import make_anchor
from kvrun.evidence.scope import Scope
from kvrun.keys.signing import PublicKeyRecord, SigningKey
from kvrun.launch.trust import EXPORTED_PURPOSES, log_keys, own_keys


def scope_anchor(scope: Scope, *, signer: SigningKey | None = None) -> bytes:
    """The anchor's bytes; ``signer`` is a key of evidence that was made just now, if one was."""
    layouts = [*(site.config.layout for site in scope.sites), scope.home_layout]
    if scope.installation is not None:
        layouts.append(scope.installation)
    keys: dict[str, PublicKeyRecord] = {}
    logs: set[str] = set()
    witnesses: set[str] = set()
    revoked: set[bytes] = set()
    for layout in layouts:
        found = own_keys(layout)
        keys.update((key.key_id, key.public()) for key in found if key.purpose in EXPORTED_PURPOSES)
        logs.update(key.text() for key in log_keys(layout))
        revoked.update(
            key.private_key.public_key().public_bytes_raw()
            for key in found
            if key.revoked_at is not None
        )
        witnesses.update(key.text() for key in _collectors(layout))
    for site in scope.sites:
        # What the collector pinned: the machine whose log it was may be gone.
        pinned = [item.verifier_key for item in site.plane.memory.all()]
        logs.update(key.text() for key in pinned if key.public_key not in revoked)
        named = site.config.witness.keys_file
        if named is not None:
            witnesses.update(key.text() for key in read_keys(named))
    if signer is not None:
        keys[signer.key_id] = signer.public()
    return make_anchor(
        sorted(keys.values(), key=lambda key: (key.purpose, key.created_at, key.key_id)),
        _parsed(logs),
        _parsed(witnesses),
    )


def _collectors(layout: DataLayout) -> Iterable[VerifierKey]:
    path = layout.control / VERIFIER_KEYS
    return read_keys(path) if path.is_file() else ()


def _parsed(texts: Iterable[str]) -> list[VerifierKey]:
    return [parse_verifier_key(text) for text in sorted(texts)]
