"""Writes pack.json: packs made byte by byte from docs/spec/pack.md, without the package's code.

python tests/vectors/make_pack.py            writes the file beside this script
python tests/vectors/make_pack.py --check    fails when the file differs
"""

import argparse
import hashlib
import hmac
import json
import struct
import sys
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def seal(dek: bytes, generation: int, context: bytes, plain: bytes, salt: bytes) -> bytes:
    """The KVS1 envelope of docs/spec/sealed-block.md."""
    label = b"kvrun/block-key/v1\x00AEAD_AES_256_GCM\x00"
    okm = hmac.new(dek, label + salt + context + b"\x01", hashlib.sha512).digest()
    header = b"KVS1" + bytes([1, 1, 0, 0]) + struct.pack("<I", generation)
    header += salt + okm[32:] + struct.pack("<I", len(plain))
    return header + AESGCM(okm[:32]).encrypt(bytes(12), plain, header + context)


def prefixed(value: str) -> bytes:
    """Length (2, little-endian), then the ASCII bytes."""
    return struct.pack("<H", len(value)) + value.encode("ascii")


def make(what: str, generation: int, blocks: list[bytes], random: bytes, salt: bytes) -> dict:
    """One pack and everything that went into it."""
    dek = hashlib.sha256(what.encode()).digest()
    names = [hashlib.sha256(what.encode() + bytes([n])).digest()[:16] for n in range(len(blocks))]
    name = f"{random.hex()}-{len(blocks)}.kvp"
    ids = ("w-1", "d-1", "alice@example.org", "chat/1")
    context = b"kvrun/pack-index/v1\x00" + struct.pack("<I", generation)
    context += b"".join(prefixed(value) for value in (*ids, name))
    index = b"KVPI" + struct.pack("<II", 1, len(blocks)) + bytes(range(32))
    index += struct.pack("<Q", 1_767_225_600_000_000)
    for block_name, block in zip(names, blocks, strict=True):
        index += block_name + struct.pack("<I", len(block))
    sealed = seal(dek, generation, context, index, salt)
    size = sum(len(block) for block in blocks)
    footer = b"KVP1" + bytes([1, 1, 0, 0])
    footer += struct.pack("<IIQQ", generation, len(sealed), size, 0)
    return {
        "what": what,
        "dek": dek.hex(),
        "generation": str(generation),
        "workspace": ids[0],
        "deployment": ids[1],
        "tenant": ids[2],
        "session": ids[3],
        "name": name,
        "salt": salt.hex(),
        "context": context.hex(),
        "index": index.hex(),
        "blocks": [block.hex() for block in blocks],
        "pack": (b"".join(blocks) + sealed + footer).hex(),
    }


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    packs = [
        make("two blocks", 1, [b"a" * 100, b"b" * 33], bytes(range(16)), bytes(24)),
        make("another generation", 2**32 - 1, [b"c", b"d" * 300], bytes(16), b"s" * 24),
    ]
    path = Path(__file__).with_name("pack.json")
    text = json.dumps({"packs": packs}, indent=1) + "\n"
    if not check:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} differs")


if __name__ == "__main__":
    main()
