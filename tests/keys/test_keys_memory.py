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

from support.sha512 import hmac_state, sha512_compress

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
epoch = masked(service._ring.store.epoch(service.epoch)._secret.view)
say(secrets=secrets("one"), kept=secrets("two"), epoch=epoch,
    protection=service.protection.value)
sealer = keys.sealer  # someone still holds the sealer and the handle
service.destroy_session("alice", "one")
gc.collect()
say(epoch=masked(service._ring.store.epoch(service.epoch)._secret.view))
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
