"""Vectors of the collector's statements and cosignatures; uses nothing of kvrun.

Run: python tests/vectors/make_collector_statement.py
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NAME = "host.test/collector"
LOG = "w-1/d-1/host-7"
TIME = 1_800_000_000
PRIVATE = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
PUBLIC = PRIVATE.public_key().public_bytes_raw()
KEY_ID = hashlib.sha256(NAME.encode() + b"\n\x04" + PUBLIC).digest()[:4]


def note(kind: str, body: dict[str, object]) -> str:
    """A signed note with a timestamped signature of type 0x04."""
    line = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    text = f"{kind}\n{LOG}\n{line}\n"
    signature = PRIVATE.sign(f"cosignature/v1\ntime {TIME}\n{text}".encode())
    encoded = base64.b64encode(KEY_ID + TIME.to_bytes(8, "big") + signature).decode()
    return f"{text}\n— {NAME} {encoded}\n"


def place(size: int) -> dict[str, object]:
    """A place in a log of so many records, with made-up hashes."""
    hashes = [hashlib.sha256(b"%d %d" % (size, n)).hexdigest() for n in range(size.bit_count())]
    return {
        "epoch": 1,
        "frontier": hashes,
        "prev": hashlib.sha256(b"%d" % size).hexdigest(),
        "size": size,
        "ts": "2026-01-31T12:00:00.000250Z",
    }


tombstone = {
    "after": place(13),
    "before": place(0),
    "reason": "retention",
    "segments": [
        {"file_bytes": 4000, "first_seq": 0, "sha256": "ab" * 32},
        {"file_bytes": 1200, "first_seq": 8, "sha256": "cd" * 32},
    ],
}
retirement = {
    "checkpoint": f"{LOG}\n13\n{base64.b64encode(b'r' * 32).decode()}\n\n— {LOG} AAAA\n",
    "last_collected": "2026-01-31T12:03:00.000000Z",
    "reason": "the disk is lost",
    "root": (b"r" * 32).hex(),
    "size": 13,
    "uncollected_from": "2026-01-31T12:00:00.000250Z",
    "uncollected_until": "2026-02-02T08:00:00.000000Z",
}
vectors = {
    "log": LOG,
    "name": NAME,
    "seed": (b"c" * 32).hex(),
    "time": TIME,
    "verifier_key": f"{NAME}+{KEY_ID.hex()}+{base64.b64encode(bytes([4]) + PUBLIC).decode()}",
    "tombstone": note("kvrun-audit-tombstone/v1", tombstone),
    "tombstone_json": tombstone,
    "retirement": note("kvrun-audit-retirement/v1", retirement),
    "retirement_json": retirement,
}
target = Path(__file__).with_name("collector-statement.json")
target.write_text(json.dumps(vectors, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
