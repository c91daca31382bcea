"""Searching a process's memory as root: keys are found while they live, and not afterwards.

The child gives every secret xor-masked, so that the search leaves no copy of its own, and it
works with fallback buffers, because memory of memfd_secret(2) cannot be read at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MASK = 0xA5

CHILD = """
import gc, json, sys
from pathlib import Path
import kvrun.keys.locked as locked
from kvrun.keys import FileRoot, KeyLimits, KeyService
base, fallback = Path(sys.argv[1]), sys.argv[2] == "fallback"
if fallback:
    locked._map_secret = lambda size: None
def masked(view):
    return [byte ^ 0xA5 for byte in view]
service = KeyService.open(base / "keys", FileRoot(base / "root"), workspace="w", deployment="d",
                          limits=KeyLimits(), now=lambda: 1e9)
keys = service.acquire("alice", "one")
kept = service.acquire("alice", "two")
def secrets(session):
    with service._ring.opened(service._ring.find("alice", session)) as opened:
        return {"dek": masked(opened.dek), "name": masked(opened.name_key),
                "seed": masked(opened.salt_seed)}
def say(**fields):
    print(json.dumps(fields), flush=True)
    sys.stdin.readline()
out = bytearray(88 + 5)
keys.sealer.seal_into(b"context", b"plain", out, salt=b"s" * 24)
keys.block_name(b"x")
epoch = masked(service._ring._epoch._secret.view)
say(secrets=secrets("one"), kept=secrets("two"), epoch=epoch,
    protection=service.protection.value)
sealer = keys.sealer  # someone still holds the sealer and the handle
service.destroy_session("alice", "one")
gc.collect()
say(epoch=masked(service._ring._epoch._secret.view))
service.close()
gc.collect()
say()
"""


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def step(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child ended early"
        found: dict[str, object] = json.loads(line)
        return found

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def copies(self, needle: bytes) -> int:
        return sum(chunk.count(needle) for chunk in self._readable())

    def _readable(self) -> Iterator[bytes]:
        process = Path("/proc") / str(self._process.pid)
        with (process / "mem").open("rb", buffering=0) as memory:
            for line in (process / "maps").read_text().splitlines():
                span, mode = line.split()[:2]
                if not mode.startswith("rw"):
                    continue
                start, end = (int(part, 16) for part in span.split("-"))
                try:
                    memory.seek(start)
                    yield memory.read(end - start)
                except (OSError, ValueError):
                    continue


@contextmanager
def child(base: Path, memory: str) -> Iterator[Child]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(base), memory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.wait()


def unmask(values: object) -> bytes:
    assert isinstance(values, list)
    return bytes(value ^ MASK for value in values)


def unmask_all(values: object) -> dict[str, bytes]:
    assert isinstance(values, dict)
    return {name: unmask(value) for name, value in values.items()}


def hmac_state(key: bytes, pad: int) -> bytes:
    """The inner (0x36) or outer (0x5c) SHA-512 state of HMAC after its key block, as in memory."""
    block = bytes(byte ^ pad for byte in key.ljust(128, b"\0"))
    return b"".join(word.to_bytes(8, "little") for word in sha512_compress(block))


@pytest.mark.root
def test_a_destroyed_session_leaves_neither_key_nor_hash_state_in_memory(tmp_path: Path) -> None:
    with child(tmp_path, "fallback") as process:
        alive = process.step()
        assert alive["protection"] == "locked"
        secrets, kept = unmask_all(alive["secrets"]), unmask_all(alive["kept"])
        epoch = unmask(alive["epoch"])
        states = [hmac_state(secrets["dek"], pad) for pad in (0x36, 0x5C)]
        # The search can succeed: the epoch key and the sealer's state are there ...
        assert process.copies(epoch) >= 1
        assert all(process.copies(state) >= 1 for state in states)
        # ... while the keys themselves are not kept even for a live session.
        raw = [*secrets.values(), *kept.values()]
        assert [process.copies(secret) for secret in raw] == [0] * 6

        process.go_on()
        new_epoch = unmask(process.step()["epoch"])
        assert [process.copies(state) for state in states] == [0, 0]
        assert [process.copies(secret) for secret in secrets.values()] == [0, 0, 0]
        assert process.copies(epoch) == 0
        assert process.copies(new_epoch) >= 1
        kept_states = [hmac_state(kept["dek"], pad) for pad in (0x36, 0x5C)]
        assert all(process.copies(state) >= 1 for state in kept_states)

        process.go_on()
        process.step()
        assert [process.copies(state) for state in kept_states] == [0, 0]
        assert process.copies(new_epoch) == 0


@pytest.mark.root
def test_secret_memory_cannot_be_read_even_by_root(tmp_path: Path) -> None:
    with child(tmp_path, "secret") as process:
        alive = process.step()
        if alive["protection"] != "secret":
            pytest.skip("memfd_secret(2) is not available here")
        assert process.copies(unmask(alive["epoch"])) == 0


def test_the_compression_function_of_these_tests_is_sha_512() -> None:
    import hashlib

    block = b"abc" + b"\x80" + bytes(128 - 4 - 16) + (24).to_bytes(16, "big")
    words = sha512_compress(block)
    digest = b"".join(word.to_bytes(8, "big") for word in words)
    assert digest == hashlib.sha512(b"abc").digest()


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
