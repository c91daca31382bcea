"""Claims that are signed before their request comes, and what ends them."""

import asyncio
import itertools
import time
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from gateway_rig import FakeDaemon, FakeEngine, Gateway, Grant

from kvrun.claims import ClaimVerifier
from kvrun.claims.claim import Claim, key_id_of
from kvrun.claims.rotating import RotatingSigner
from kvrun.gateway.claiming import SessionClaims
from kvrun.gateway.identity import Identity
from kvrun.gateway.salts import OpenSession

ALICE = Identity("alice", "s1", named=True)
LIFETIME_S = 300


@dataclass
class Rig:
    """The claims of one session under a clock that the test moves."""

    now: float = 1_800_000_000.0

    def __post_init__(self) -> None:
        key, numbers = Ed25519PrivateKey.generate(), itertools.count()
        self.signer = RotatingSigner(key)
        self.verifier = ClaimVerifier([key.public_key()], "chat", now=lambda: self.now)
        self.opened = OpenSession(Grant("a" * 43))
        self.claims = SessionClaims(
            FakeDaemon(),
            self.signer,
            lifetime_s=LIFETIME_S,
            now=lambda: self.now,
            random_bytes=lambda count: next(numbers).to_bytes(count),
            new_request_id=lambda: f"kvr-{next(numbers)}",
        )

    async def ask(self, uses: int = 1) -> Claim:
        """The claim of a request, and a turn of the loop, as while the engine computes."""
        made = self.claims.next(ALICE, self.opened, uses)
        await asyncio.sleep(0)
        claim = self.verifier.verify(made.token)
        assert claim.request_id == made.request_id
        return claim

    async def converse(self) -> str:
        """Two requests, after which the id of the third is waiting."""
        await self.ask()
        assert self.opened.ready is None, "one request alone is no conversation"
        await self.ask()
        assert self.opened.ready is not None
        return self.opened.ready.request_id


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_from_the_second_request_on_the_next_claim_is_waiting(rig: Rig) -> None:
    waiting = await rig.converse()
    third = await rig.ask()
    assert third.request_id == waiting
    assert (third.tenant, third.session, third.uses) == ("alice", "s1", 1)
    assert third.expires_at - third.issued_at == LIFETIME_S


async def test_no_claim_is_given_twice_to_requests_of_one_moment(rig: Rig) -> None:
    await rig.converse()
    claims = await asyncio.gather(*(rig.ask() for _ in range(10)))
    assert len({claim.nonce for claim in claims}) == 10
    assert len({claim.request_id for claim in claims}) == 10


@pytest.mark.parametrize("waited_s", [0, LIFETIME_S // 10, LIFETIME_S // 10 + 1, LIFETIME_S, -1])
async def test_a_claim_waits_for_a_tenth_of_its_life(rig: Rig, waited_s: int) -> None:
    waiting = await rig.converse()
    rig.now += waited_s
    claim = await rig.ask()
    assert (claim.request_id == waiting) == (0 <= waited_s <= LIFETIME_S // 10)
    assert claim.expires_at - rig.now >= LIFETIME_S * 0.9


async def test_a_request_with_several_uses_gets_a_claim_of_its_own(rig: Rig) -> None:
    waiting = await rig.converse()
    several = await rig.ask(uses=4)
    assert (several.uses, several.request_id == waiting) == (4, False)
    assert (await rig.ask()).request_id == waiting


async def test_a_replaced_key_leaves_no_claim_behind(rig: Rig) -> None:
    waiting = await rig.converse()
    new = Ed25519PublicKey.from_public_bytes(rig.signer.introduction().public_key)
    assert rig.signer.use(key_id_of(new))
    rig.verifier.add(new)
    assert (await rig.ask()).request_id != waiting


async def test_the_engine_and_the_client_see_the_id_of_the_claim(
    engine: FakeEngine, gateway: Gateway
) -> None:
    verifier = ClaimVerifier([gateway.claim_key.public_key()], "chat", now=time.time)
    found = []
    for _ in range(4):
        async with gateway.post(
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
            X_KV_Tenant="alice",
        ) as answer:
            claim = verifier.verify(engine.last_body["kv_transfer_params"]["kvrun_claim"])
            assert answer.headers["X-KV-Request-Id"] == claim.request_id
            assert engine.last_headers["X-Request-ID"] == claim.request_id
            found.append(claim)
    assert len({claim.request_id for claim in found}) == len({claim.nonce for claim in found}) == 4


async def test_a_claim_that_waits_ends_with_its_grant(engine: FakeEngine, gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.chat(headers={"X-KV-Tenant": "alice"})
    assert gateway.parts.directory is not None
    opened = gateway.parts.directory.cached("alice", "default")
    assert opened is not None
    assert opened.ready is not None
    gateway.daemon.generation = 2
    gateway.parts.on_invalidated("alice", "default")
    await gateway.chat(headers={"X-KV-Tenant": "alice"})
    verifier = ClaimVerifier([gateway.claim_key.public_key()], "chat", now=time.time)
    claim = verifier.verify(engine.last_body["kv_transfer_params"]["kvrun_claim"])
    assert (claim.generation, claim.salt) == (2, engine.last_body["cache_salt"])
    assert claim.request_id != opened.ready.request_id
