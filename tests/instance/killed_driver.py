"""An engine and its gateway in a process of their own, which say on stdout what they were answered.

``asked``, ``admitted``, ``opened`` and ``sealed`` lines name a request and a number of blocks. When
the daemon dies they find the next one and go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from itertools import count
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import Claim, ClaimSigner
from kvrun.errors import KvrunError
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.grant import SessionGrant
from kvrun.instance.protocol import Verdict
from support.byhand import BLOCK_BYTES, HandEngine

BLOCKS = 3


def say(what: str, request_id: str, blocks: int = 0) -> None:
    os.write(1, f"{what} {request_id} {blocks}\n".encode())


async def drive(socket: Path, given: dict[str, str], numbers: count[int]) -> None:
    """Ask for requests one after another until the daemon is gone."""
    signer = ClaimSigner(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(given["claim"])))
    gateway = AsyncInstanceClient(
        socket, given["gateway"], on_invalidated=lambda *_: None, on_lost=lambda: None
    )
    await gateway.start()
    try:
        with HandEngine(socket, given["engine"]) as engine:
            while True:
                number = next(numbers)
                granted = await gateway.open_session(f"tenant-{number % 3}", "default")
                await asyncio.to_thread(one_request, engine, signer, granted, number)
    finally:
        await gateway.close()


def one_request(
    engine: HandEngine, signer: ClaimSigner, granted: SessionGrant, number: int
) -> None:
    """Store new blocks, see that they can be found, and have them opened."""
    request_id = f"r-{number}"
    made = [(secrets.token_bytes(32), secrets.token_bytes(BLOCK_BYTES)) for _ in range(BLOCKS)]
    hashes = [block_hash for block_hash, _ in made]
    claim = signer.sign(stamped(granted, f"tenant-{number % 3}", request_id))
    say("asked", request_id)
    answer = engine.match(claim, granted.salt, hashes)
    if answer.verdict is not Verdict.ADMITTED:
        return
    say("admitted", request_id)
    engine.store(answer.handle, made)
    # Found means sealed, and an open of what was found needs a record of its own.
    while not all(engine.match("", "", hashes, handle=answer.handle).tiers[0]):
        pass
    say("sealed", request_id, BLOCKS)
    opened = engine.load(answer.handle, hashes)
    assert opened.plain == dict(made)
    say("opened", request_id, BLOCKS)
    engine.start(answer.handle, 16, 0)
    engine.finish(answer.handle)


def stamped(granted: SessionGrant, tenant: str, request_id: str) -> Claim:
    now = int(time.time())
    return Claim(
        workspace="default",
        deployment="default",
        tenant=tenant,
        session="default",
        generation=granted.generation,
        salt=granted.salt,
        request_id=request_id,
        nonce=secrets.token_urlsafe(16),
        uses=1,
        issued_at=now,
        expires_at=now + 300,
    )


def main() -> None:
    socket, given, numbers = Path(sys.argv[1]), json.loads(sys.argv[2]), count()
    while True:
        try:
            asyncio.run(drive(socket, given, numbers))
        except (KvrunError, AssertionError, OSError, TimeoutError):
            time.sleep(0.02)


if __name__ == "__main__":
    main()
