"""The key that signs claims is replaced while gateway, daemon and engine go on."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from test_instance_requests import admit, blocks, hashes, stored

from kvrun.claims.claim import ClaimSigner
from kvrun.claims.rotating import RotatingSigner
from kvrun.errors import KvrunError
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.protocol import Verdict
from support.byhand import HandEngine
from support.client import grant
from support.daemon import Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """One for each test: what a test ends stays ended."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    running = Daemon(folder)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


class Gateway:
    """A gateway's connection, and the signer whose key it lets the daemon replace."""

    def __init__(self, daemon: Daemon, key: Ed25519PrivateKey | None = None) -> None:
        self.signer = RotatingSigner(key or daemon.claim_key)
        self.client = AsyncInstanceClient(
            daemon.socket,
            daemon.gateway_token,
            on_invalidated=lambda tenant, session: None,
            on_lost=lambda: None,
            claims=self.signer,
        )


def serve(*gateways: Gateway, do: Callable[[], Awaitable[None]]) -> None:
    """Do something while the gateways are connected."""

    async def run() -> None:
        for gateway in gateways:
            await gateway.client.start()
        try:
            await do()
        finally:
            for gateway in gateways:
                await gateway.client.close()

    asyncio.run(run())


async def rotate(daemon: Daemon, *gateways: Gateway, **arguments: str) -> Any:
    """Replace the keys, and wait until the gateways sign with the new ones."""
    done: Any = await asyncio.to_thread(daemon.admin, "rotate_claim", **arguments)
    await until(
        lambda: {gateway.signer.key_id for gateway in gateways} <= set(done["keys"]),
        "the new keys are in use",
    )
    return done


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  nothing tells when it does
            await asyncio.sleep(0.02)
    assert holds(), what


def believed(daemon: Daemon) -> dict[str, float | None]:
    found: Any = daemon.admin("claim_keys")
    return {key["id"]: key["until"] for key in found}


def is_admitted(daemon: Daemon, signer: object) -> bool:
    """Whether a claim of that signer lets a request use the cache."""
    daemon.signer = signer  # type: ignore[assignment]
    granted = grant(daemon, "alice")
    claim = daemon.claim("alice", granted.salt, granted.generation)
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        answer = engine.match(claim, granted.salt, hashes(blocks(1)))
        return answer.verdict is Verdict.ADMITTED


def test_claims_of_the_new_key_count_at_once_and_the_old_ones_end(daemon: Daemon) -> None:
    gateway, launch = Gateway(daemon), daemon.signer

    async def go() -> None:
        first = gateway.signer.key_id
        done = await rotate(daemon, gateway)
        second = gateway.signer.key_id
        assert (done["keys"], done["gateways"], done["overlap_s"]) == ([second], 1, 300)
        known = await asyncio.to_thread(believed, daemon)
        assert known.pop(second) is None
        assert known.pop(first) is not None
        assert await asyncio.to_thread(is_admitted, daemon, gateway.signer)
        assert await asyncio.to_thread(is_admitted, daemon, launch), "it is still believed"

        await rotate(daemon, gateway, overlap_s="0")
        third = gateway.signer.key_id
        known = await asyncio.to_thread(believed, daemon)
        assert set(known) == {third}
        assert await asyncio.to_thread(is_admitted, daemon, gateway.signer)
        assert not await asyncio.to_thread(is_admitted, daemon, launch)

    serve(gateway, do=go)
    events = [record for record in daemon.events() if record["event"] == "key_rotated"]
    assert [record["reason"] for record in events] == ["claim", "claim"]


def test_requests_run_all_the_while_and_none_without_a_believed_claim(daemon: Daemon) -> None:
    gateway, stranger = Gateway(daemon), ClaimSigner(Ed25519PrivateKey.generate())
    granted = grant(daemon, "alice")
    signed_by: list[str] = []

    def claim(signer: RotatingSigner | ClaimSigner) -> str:
        daemon.signer = signer  # type: ignore[assignment]
        return daemon.claim("alice", granted.salt, granted.generation)

    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        made = stored(daemon, engine, "alice", 2)
        from_before = admit(daemon, engine, "alice", hashes(made))

        def request(good: str, bad: str) -> None:
            admitted = engine.match(good, granted.salt, hashes(made))
            assert admitted.verdict is Verdict.ADMITTED
            assert engine.load(admitted.handle, hashes(made)).plain == dict(made)
            engine.finish(admitted.handle)
            denied = engine.match(bad, granted.salt, hashes(made))
            assert (denied.verdict, denied.handle) == (Verdict.DENIED, 0)

        async def go() -> None:
            done = asyncio.Event()

            async def load() -> None:
                while not done.is_set():
                    signing = gateway.signer.key_id
                    await asyncio.to_thread(request, claim(gateway.signer), claim(stranger))
                    signed_by.append(signing)

            running = asyncio.create_task(load())
            for rotation in range(4):
                if rotation:
                    await rotate(daemon, gateway)
                newest = gateway.signer.key_id
                await until(lambda: running.done() or newest in signed_by, "it signs")  # noqa: B023
            done.set()
            await running
            opened = await asyncio.to_thread(engine.load, from_before.handle, hashes(made))
            assert opened.plain == dict(made), "what ran before the rotations goes on"

        serve(gateway, do=go)
    assert len(set(signed_by)) == 4


def test_every_gateway_gets_a_key_of_its_own(daemon: Daemon) -> None:
    one, other = Gateway(daemon), Gateway(daemon)

    async def go() -> None:
        done = await rotate(daemon, one, other, overlap_s="0")
        assert sorted(done["keys"]) == sorted([one.signer.key_id, other.signer.key_id])
        for gateway in (one, other):
            assert await asyncio.to_thread(is_admitted, daemon, gateway.signer)

    serve(one, other, do=go)


def test_a_gateway_that_comes_again_with_the_launchs_key_is_believed_again(daemon: Daemon) -> None:
    first, again = Gateway(daemon), Gateway(daemon)
    launch = again.signer.key_id

    async def leave() -> None:
        await rotate(daemon, first, overlap_s="0")

    async def come() -> None:
        await until(lambda: again.signer.key_id != launch, "it introduced a key of its own")
        assert await asyncio.to_thread(is_admitted, daemon, again.signer)
        assert launch not in await asyncio.to_thread(believed, daemon)

    serve(first, do=leave)
    serve(again, do=come)


def test_after_a_restart_of_the_daemon_the_gateway_goes_on_and_the_launchs_key_ends(
    daemon: Daemon,
) -> None:
    gateway = Gateway(daemon)

    async def go() -> None:
        launch = gateway.signer.key_id
        await rotate(daemon, gateway, overlap_s="0")
        second = gateway.signer.key_id
        await asyncio.to_thread(daemon.stop)
        await asyncio.to_thread(daemon.start)
        await until(lambda: gateway.signer.key_id != second, "it introduced another key")
        known = await asyncio.to_thread(believed, daemon)
        assert known[launch] is not None, "it ends, as it did before the restart"
        assert await asyncio.to_thread(is_admitted, daemon, gateway.signer)

    serve(gateway, do=go)


def test_the_token_alone_introduces_no_key(daemon: Daemon) -> None:
    thief = Gateway(daemon, Ed25519PrivateKey.generate())
    known = believed(daemon)

    async def go() -> None:
        with pytest.raises(KvrunError, match="not of this launch"):
            await rotate(daemon)
        assert await asyncio.to_thread(believed, daemon) == known
        assert not await asyncio.to_thread(is_admitted, daemon, thief.signer)

    serve(thief, do=go)


def test_without_a_gateway_nothing_changes(daemon: Daemon) -> None:
    known = believed(daemon)
    with pytest.raises(KvrunError, match="no gateway is connected") as refused:
        daemon.admin("rotate_claim")
    assert refused.value.status == 409
    with pytest.raises(KvrunError, match="0 to 3600 seconds"):
        daemon.admin("rotate_claim", overlap_s="9999")
    assert believed(daemon) == known
