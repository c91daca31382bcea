"""Writes key_copy.json: copies of key slots made byte by byte from docs/spec/key-copy.md.

python tests/vectors/make_key_copy.py            writes the file beside this script
python tests/vectors/make_key_copy.py --check    fails when the file differs
"""

import argparse
import hashlib
import json
import struct
import sys
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def prefixed(value: str) -> bytes:
    """Length (2, big-endian), then UTF-8."""
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def make(workspace: str, deployment: str, slots: bytes, wrapped_bytes: int) -> dict:
    """One copy and everything that went into it."""
    seed = f"{workspace}/{deployment}".encode()
    key = hashlib.sha256(seed).digest()
    nonce = hashlib.sha256(seed + b"nonce").digest()[:12]
    # What a root makes of the key is its own affair.
    wrapped = hashlib.shake_256(seed + b"wrapped").digest(wrapped_bytes)
    bound = b"kvrun/key-wrap/v1\x00"
    bound += prefixed("slot-copy") + prefixed(workspace) + prefixed(deployment)
    head = b"KVKC" + bytes([1, 1]) + struct.pack("<H", len(wrapped)) + wrapped + nonce
    return {
        "workspace": workspace,
        "deployment": deployment,
        "key": key.hex(),
        "wrapped": wrapped.hex(),
        "nonce": nonce.hex(),
        "context": bound.hex(),
        "slots": slots.hex(),
        "copy": (head + AESGCM(key).encrypt(nonce, slots, head + bound)).hex(),
    }


def vectors() -> str:
    """The file's text."""
    found = [
        make("w-1", "d-1", b"KVRUNSLT" + bytes(100), 60),
        make("größe", "d/2", hashlib.shake_256(b"slots").digest(1000), 380),
    ]
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    path = Path(__file__).with_name("key_copy.json")
    if parser.parse_args().check:
        sys.exit(path.read_text() != vectors())
    path.write_text(vectors())
