"""An engine and its gateway in a process of their own, over a daemon that is killed and killed.

A block's plaintext follows from its hash, so every block that opens is checked, whichever daemon
sealed it. Lines on stdout: ``stored N``, ``opened N`` and, if ever, ``WRONG HASH``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sys
import time
from hashlib import shake_256
from itertools import count
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from killed_driver import stamped

from kvrun.claims.claim import ClaimSigner
from kvrun.errors import KvrunError
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.grant import SessionGrant
from kvrun.instance.protocol import Verdict
from support.byhand import BLOCK_BYTES, HandEngine

BLOCKS = 4


def plain_of(block_hash: bytes) -> bytes:
    """What a block holds."""
    return shake_256(block_hash).digest(BLOCK_BYTES)


def say(what: str, value: object) -> None:
    os.write(1, f"{what} {value}\n".encode())


class Driver:
    """Remembers what each tenant stored, over all daemons."""

    def __init__(self) -> None:
        self.numbers = count()
        self.stored: dict[int, list[list[bytes]]] = {}

    async def drive(self, socket: Path, given: dict[str, str]) -> None:
        """Ask for requests one after another until the daemon is gone."""
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["claim"]))
        signer = ClaimSigner(key)
        gateway = AsyncInstanceClient(
            socket, given["gateway"], on_invalidated=lambda *_: None, on_lost=lambda: None
        )
        await gateway.start()
        try:
            with HandEngine(socket, given["engine"]) as engine:
                while True:
                    number = next(self.numbers)
                    granted = await gateway.open_session(f"tenant-{number % 3}", "default")
                    await asyncio.to_thread(self.request, engine, signer, granted, number)
        finally:
            await gateway.close()

    def request(
        self, engine: HandEngine, signer: ClaimSigner, granted: SessionGrant, number: int
    ) -> None:
        """Have some earlier blocks opened, then store new ones."""
        mine = self.stored.setdefault(number % 3, [])
        # A prompt of before, from its first block on: a block is bound to its place.
        earlier = random.choice(mine) if mine else []
        fresh = [secrets.token_bytes(32) for _ in range(BLOCKS)]
        claim = signer.sign(stamped(granted, f"tenant-{number % 3}", f"r-{number}"))
        answer = engine.match(claim, granted.salt, earlier)
        if answer.verdict is not Verdict.ADMITTED:
            return
        tiers = answer.tiers[0] if answer.tiers else b""
        found = earlier[: (tiers + b"\0").index(0)]
        if found:
            opened = engine.load(answer.handle, found)
            for block_hash, plain in opened.plain.items():
                if plain != plain_of(block_hash):
                    say("WRONG", block_hash.hex())
            say("opened", len(opened.plain))
        engine.store(answer.handle, [(h, plain_of(h)) for h in fresh])
        mine.append(fresh)
        say("stored", len(fresh))
        engine.finish(answer.handle)


def main() -> None:
    socket, given, driver = Path(sys.argv[1]), json.loads(sys.argv[2]), Driver()
    while True:
        try:
            asyncio.run(driver.drive(socket, given))
        except (KvrunError, AssertionError, OSError, TimeoutError):
            time.sleep(0.02)


if __name__ == "__main__":
    main()
