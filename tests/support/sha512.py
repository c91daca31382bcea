"""SHA-512 opened up (FIPS 180-4): what a hash state of a key looks like in a process's memory."""

from __future__ import annotations


def hmac_state(key: bytes, pad: int) -> bytes:
    """The inner (0x36) or outer (0x5c) SHA-512 state of HMAC after its key block, as in memory."""
    block = bytes(byte ^ pad for byte in key.ljust(128, b"\0"))
    return b"".join(word.to_bytes(8, "little") for word in sha512_compress(block))


def sha512_compress(block: bytes) -> list[int]:
    """One compression from the initial value (FIPS 180-4), for its chaining state."""
    primes = [n for n in range(2, 410) if all(n % d for d in range(2, int(n**0.5) + 1))][:80]
    k = [_fraction(prime, 3) for prime in primes]
    start = [_fraction(prime, 2) for prime in primes[:8]]
    w = [int.from_bytes(block[at : at + 8], "big") for at in range(0, 128, 8)]
    for t in range(16, 80):
        s0 = _rotate(w[t - 15], 1) ^ _rotate(w[t - 15], 8) ^ (w[t - 15] >> 7)
        s1 = _rotate(w[t - 2], 19) ^ _rotate(w[t - 2], 61) ^ (w[t - 2] >> 6)
        w.append((w[t - 16] + s0 + w[t - 7] + s1) & _MASK64)
    a, b, c, d, e, f, g, h = start
    for t in range(80):
        s1 = _rotate(e, 14) ^ _rotate(e, 18) ^ _rotate(e, 41)
        t1 = (h + s1 + ((e & f) ^ (~e & g)) + k[t] + w[t]) & _MASK64
        s0 = _rotate(a, 28) ^ _rotate(a, 34) ^ _rotate(a, 39)
        t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) & _MASK64
        a, b, c, d, e, f, g, h = (t1 + t2) & _MASK64, a, b, c, (d + t1) & _MASK64, e, f, g
    return [(x + y) & _MASK64 for x, y in zip(start, (a, b, c, d, e, f, g, h), strict=True)]


_MASK64 = (1 << 64) - 1


def _rotate(value: int, by: int) -> int:
    return ((value >> by) | (value << (64 - by))) & _MASK64


def _fraction(prime: int, root: int) -> int:
    """The first 64 bits of the fraction of a prime's square or cube root."""
    scaled = prime << (64 * root)
    low, high = 0, 1 << 80
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**root <= scaled else (low, middle - 1)
    return low & _MASK64
