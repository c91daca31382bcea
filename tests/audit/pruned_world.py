"""A log whose first segment was pruned under a tombstone, and tombstones that do not count."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.audit.segment import manifest_path, parse_manifest
from kvrun.audit.statement import TOMBSTONE, Tombstone, sign_statement

CHANGES = {None: "pruned", "signer": "starts_late", "signature": "bad_tombstone"}
CHANGES["place"] = "starts_late"
"""What is wrong with the tombstone, and the finding that it leads to."""


def prune(world: Any, change: str | None) -> VerifierKey:
    """Prune the first segment; the key of the witness that the verifier knows."""
    first = world.segments()[0]
    manifest = parse_manifest(manifest_path(first).read_bytes())
    before = manifest.before if change != "place" else manifest.after
    stone = Tombstone(after=manifest.after, before=before, reason="retention", segments=[])
    body = msgspec.json.encode(stone, order="sorted")
    collector = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    note = sign_statement(TOMBSTONE, manifest.log, body, "collector", collector, 1_700_000_500)
    if change == "signature":
        note = note.replace(b"retention", b"retentiom")
    (world.folder / "one.tombstone").write_bytes(note)
    first.unlink()
    name = "collector" if change != "signer" else "other"
    return VerifierKey(name, COSIGNATURE_V1, collector.public_key().public_bytes_raw())
