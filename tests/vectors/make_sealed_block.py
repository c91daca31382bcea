"""Writes sealed-block.json: test vectors of the KVS1 sealed block, made from its specification.

It follows docs/spec/sealed-block.md and shares no code with the package: HMAC and HKDF-Expand are
written out here over hashlib's SHA-512, AES-GCM comes from the low-level cipher interface.

    python tests/vectors/make_sealed_block.py            writes the file beside this script
    python tests/vectors/make_sealed_block.py --check    fails when the file differs
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

SESSIONS = {
    "plain": ("ws_1", "dep_1", "default", "default", bytes(range(32)), 1),
    "limits": ("!" * 128, "~" * 128, "t", "s-0.9:/@", b"\xff" * 32, 2**32 - 1),
    "shifted": ("ws_1d", "ep_1", "default", "default", bytes(range(32)), 1),
}
BLOCKS = {
    "plain": (b"\x11" * 32, 0, 0, 1, "0-27", 0, 256),
    "limits": (b"\x00" * 255, 2**32 - 1, 7, 8, "layers.0,layers.1", 2**64 - 1, 2**32 - 1),
    "short": (b"h", 1, 1, 2, "x", 65_536, 1),
}


def le(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def prefixed(value: bytes) -> bytes:
    return le(len(value), 2) + value


def context(session: tuple, block: tuple) -> bytes:
    workspace, deployment, tenant, name, fingerprint, generation = session
    block_hash, group, rank, world_size, layers, start, count = block
    out = b"kvrun/kv-block/v1\x00"
    for text in (workspace, deployment, tenant, name):
        out += prefixed(text.encode())
    out += fingerprint + le(generation, 4)
    out += prefixed(block_hash) + prefixed(layers.encode())
    out += le(group, 4) + le(rank, 4) + le(world_size, 4) + le(start, 8) + le(count, 4)
    return out


def hmac_sha512(key: bytes, message: bytes) -> bytes:
    if len(key) > 128:
        key = hashlib.sha512(key).digest()
    key = key.ljust(128, b"\x00")
    inner = hashlib.sha512(bytes(b ^ 0x36 for b in key) + message).digest()
    return hashlib.sha512(bytes(b ^ 0x5C for b in key) + inner).digest()


def hkdf_expand(key: bytes, info: bytes, length: int) -> bytes:
    out, last, counter = b"", b"", 1
    while len(out) < length:
        last = hmac_sha512(key, last + info + bytes([counter]))
        out, counter = out + last, counter + 1
    return out[:length]


def seal(dek: bytes, salt: bytes, ctx: bytes, generation: int, plain: bytes) -> dict[str, bytes]:
    label = b"kvrun/block-key/v1\x00AEAD_AES_256_GCM\x00"
    okm = hkdf_expand(dek, label + salt + ctx, 64)
    header = b"KVS1" + bytes([1, 1]) + le(0, 2) + le(generation, 4)
    header += salt + okm[32:] + le(len(plain), 4)
    cipher = Cipher(AES(okm[:32]), GCM(bytes(12))).encryptor()
    cipher.authenticate_additional_data(header + ctx)
    body = cipher.update(plain) + cipher.finalize()
    return {"key": okm[:32], "commitment": okm[32:], "sealed": header + body + cipher.tag}


def numbered(seed: str, size: int) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(size)


def valid_cases() -> list[dict]:
    cases = []
    for index, (session_name, block_name, size) in enumerate(
        [
            ("plain", "plain", 0),
            ("plain", "plain", 1),
            ("plain", "short", 16),
            ("shifted", "plain", 33),
            ("limits", "limits", 257),
            ("limits", "short", 4096),
        ]
    ):
        session, block = SESSIONS[session_name], BLOCKS[block_name]
        dek = numbered(f"dek {session_name}", 32)
        salt = numbered(f"salt {index}", 24)
        plain = numbered(f"plain {index}", size)
        ctx = context(session, block)
        parts = seal(dek, salt, ctx, session[5], plain)
        cases.append(
            {
                "name": f"{session_name} session, {block_name} block, {size} bytes",
                "session": {
                    "workspace": session[0],
                    "deployment": session[1],
                    "tenant": session[2],
                    "session": session[3],
                    "fingerprint": session[4].hex(),
                    "generation": session[5],
                },
                "block": {
                    "block_hash": block[0].hex(),
                    "group": block[1],
                    "rank": block[2],
                    "world_size": block[3],
                    "layers": block[4],
                    "token_start": block[5],
                    "token_count": block[6],
                },
                "context": ctx.hex(),
                "dek": dek.hex(),
                "salt": salt.hex(),
                "plaintext": plain.hex(),
                "block_key": parts["key"].hex(),
                "commitment": parts["commitment"].hex(),
                "sealed": parts["sealed"].hex(),
            }
        )
    return cases


def refused_cases(valid: dict) -> list[dict]:
    good = bytes.fromhex(valid["sealed"])

    def changed(at: int, value: int) -> bytes:
        return good[:at] + bytes([value]) + good[at + 1 :]

    table = [
        ("empty", b"", "format/truncated"),
        ("one byte short of the smallest envelope", good[:87], "format/truncated"),
        ("last byte missing", good[:-1], "format/truncated"),
        ("one byte too many", good + b"\x00", "format/length"),
        ("magic", changed(3, ord("2")), "format/magic"),
        ("format version 2", changed(4, 2), "format/version"),
        ("algorithm 2", changed(5, 2), "format/algorithm"),
        ("a flag set", changed(6, 1), "format/flags"),
        ("another generation", changed(8, good[8] ^ 2), "wrong-key-or-context"),
        ("salt altered", changed(12, good[12] ^ 1), "wrong-key-or-context"),
        ("commitment altered", changed(67, good[67] ^ 0x80), "wrong-key-or-context"),
        ("ciphertext altered", changed(72, good[72] ^ 1), "integrity"),
        ("tag altered", changed(len(good) - 1, good[-1] ^ 1), "integrity"),
    ]
    return [{"name": n, "of": valid["name"], "sealed": s.hex(), "error": e} for n, s, e in table]


def document() -> str:
    valid = valid_cases()
    content = {
        "format": "KVS1",
        "specification": "docs/spec/sealed-block.md",
        "valid": valid,
        "refused": refused_cases(valid[3]),
    }
    return json.dumps(content, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    target = Path(__file__).with_name("sealed-block.json")
    if parser.parse_args().check:
        return 0 if target.read_text() == document() else 1
    target.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
