"""AES-GCM alone lets one block open under two keys; the commitment does not.

The attack: for two keys, a zero nonce and some ciphertext blocks, one further block X can be chosen
so that both keys give the same tag (the tag is linear in X over GF(2^128)).
"""

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from kvrun.seal import BlockSealer, WrongKeyOrContextError

NONCE = bytes(12)
CONTEXT = b"one context for both keys"
SALT = bytes(range(24))
DEKS = (b"\x01" * 32, b"\x02" * 32)
CHOSEN = b"sixteen bytes...another sixteen."


def times(a: int, b: int) -> int:
    """The product in GCM's GF(2^128): bit 0 is the most significant (SP 800-38D, 6.3)."""
    product = 0
    for bit in range(127, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xE1 << 120 if b & 1 else 0)
    return product


def inverse(a: int) -> int:
    result, square = 1 << 127, a  # a^(2^128 - 2); 1 << 127 is the field's one
    for _ in range(127):
        square = times(square, square)
        result = times(result, square)
    return result


def encrypt_block(key: bytes, block: bytes) -> int:
    return int.from_bytes(Cipher(AES(key), ECB()).encryptor().update(block), "big")


def ghash(h: int, aad: bytes, ciphertext: bytes) -> int:
    padded = b"".join(part + bytes(-len(part) % 16) for part in (aad, ciphertext))
    lengths = (len(aad) * 8).to_bytes(8, "big") + (len(ciphertext) * 8).to_bytes(8, "big")
    total = 0
    for at in range(0, len(padded), 16):
        total = times(total ^ int.from_bytes(padded[at : at + 16], "big"), h)
    return times(total ^ int.from_bytes(lengths, "big"), h)


def colliding(keys: tuple[bytes, bytes], aad: bytes) -> bytes:
    """Ciphertext and tag, valid under both keys for the zero nonce and ``aad``."""
    h = [encrypt_block(key, bytes(16)) for key in keys]
    s = [encrypt_block(key, NONCE + b"\x00\x00\x00\x01") for key in keys]
    g = [ghash(each, aad, CHOSEN + bytes(16)) for each in h]
    # The last ciphertext block enters each hash as X * H^2.
    x = times(s[0] ^ g[0] ^ s[1] ^ g[1], inverse(times(h[0], h[0]) ^ times(h[1], h[1])))
    ciphertext = CHOSEN + x.to_bytes(16, "big")
    return ciphertext + (s[0] ^ ghash(h[0], aad, ciphertext)).to_bytes(16, "big")


def block_secrets(dek: bytes) -> tuple[bytes, bytes]:
    label = b"kvrun/block-key/v1\x00AEAD_AES_256_GCM\x00"
    okm = hmac.digest(dek, label + SALT + CONTEXT + b"\x01", hashlib.sha512)
    return okm[:32], okm[32:]


def test_inverse_and_product_are_of_one_field():
    for value in (1 << 127, 3, 0x0123456789ABCDEF << 40):
        assert times(value, inverse(value)) == 1 << 127


@pytest.mark.parametrize("committed", [0, 1])
def test_a_block_made_for_two_keys_opens_only_under_the_committed_one(committed):
    secrets = [block_secrets(dek) for dek in DEKS]
    header = b"KVS1\x01\x01\x00\x00" + (1).to_bytes(4, "little") + SALT
    header += secrets[committed][1] + (48).to_bytes(4, "little")
    body = colliding((secrets[0][0], secrets[1][0]), header + CONTEXT)

    plains = [AESGCM(key).decrypt(NONCE, body, header + CONTEXT) for key, _ in secrets]
    assert plains[0] != plains[1], "AES-GCM itself opens the block under both keys"

    sealers = [BlockSealer(bytearray(dek), generation=1) for dek in DEKS]
    out = bytearray(48)
    sealers[committed].open_into(CONTEXT, header + body, out)
    assert out == plains[committed]
    out[:] = b"\xaa" * 48
    with pytest.raises(WrongKeyOrContextError):
        sealers[1 - committed].open_into(CONTEXT, header + body, out)
    assert not any(out)
