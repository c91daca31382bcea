"""Without a valid claim nothing is stored, loaded or reused, and the answer still comes."""

from __future__ import annotations

import resource
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import ClaimSigner
from support.client import ask, claimed, eventually, grant, prompt, reconnect, store
from support.daemon import Daemon
from support.engine import Ask, Engine

pytestmark = pytest.mark.engine

TOKENS = prompt(31, 700)
WHOLE = 640


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def cold(daemon: Daemon, engine: Engine) -> list[int]:
    """The right answer; afterwards alice's blocks are in engine memory and sealed."""
    answer = store(daemon, engine, "alice", TOKENS)
    assert answer.cached == 0
    return answer.tokens


def sealed(daemon: Daemon) -> int:
    daemon.admin("flush")
    return sum(int(str(r["blocks"])) for r in daemon.events() if r["event"] == "sealed")


def forged(daemon: Daemon, fault: str) -> tuple[str, str]:
    """The salt and claim of one kind of attack on alice's session."""
    granted = grant(daemon, "alice")
    salt, generation = granted.salt, granted.generation
    honest = daemon.claim("alice", salt, generation)
    if fault == "none":
        return salt, ""
    if fault == "malformed":
        return salt, honest[: len(honest) // 2]
    if fault == "expired":
        return salt, daemon.claim("alice", salt, generation, issued_ago_s=600, lifetime_s=60)
    if fault == "wrong deployment":
        return salt, daemon.claim("alice", salt, generation, deployment="other")
    if fault == "mallory's claim under alice's salt":
        other = grant(daemon, "mallory")
        return salt, daemon.claim("mallory", other.salt, other.generation)
    if fault == "alice's claim under another salt":
        return secrets.token_urlsafe(32), honest
    gateway = daemon.signer
    daemon.signer = ClaimSigner(Ed25519PrivateKey.generate())
    try:
        foreign = daemon.claim("alice", salt, generation)
    finally:
        daemon.signer = gateway
    if fault == "key of the engine":
        return salt, foreign
    assert fault == "key of the engine under the gateway's name"
    return salt, ".".join([*honest.split(".")[:2], *foreign.split(".")[2:]])


@pytest.mark.parametrize(
    "fault",
    [
        "none",
        "malformed",
        "expired",
        "wrong deployment",
        "mallory's claim under alice's salt",
        "alice's claim under another salt",
        "key of the engine",
        "key of the engine under the gateway's name",
    ],
)
def test_an_invalid_claim_reuses_and_stores_nothing(
    daemon: Daemon, engine: Engine, cold: list[int], fault: str
) -> None:
    salt, claim = forged(daemon, fault)
    denied, before = daemon.count("denied"), sealed(daemon)
    # Alice's pages are in engine memory and in the daemon; then only in the daemon.
    assert ask(daemon, engine, "alice", TOKENS).cached == WHOLE
    in_engine = engine.ask(Ask(TOKENS, salt, claim))[0]
    engine.reset()
    in_daemon = engine.ask(Ask(TOKENS, salt, claim))[0]
    assert [(a.cached, a.tokens) for a in (in_engine, in_daemon)] == [(0, cold)] * 2
    unheard_of = prompt(secrets.randbits(30), 700)
    first, again = (engine.ask(Ask(unheard_of, salt, claim))[0] for _ in range(2))
    assert (again.cached, again.tokens) == (0, first.tokens)
    assert sealed(daemon) == before
    if claim:
        assert daemon.count("denied") == denied + 4
    # Nothing that was computed without an admission may serve the session itself.
    assert ask(daemon, engine, "alice", unheard_of).cached == 0
    assert ask(daemon, engine, "alice", TOKENS).cached == WHOLE


def test_a_replayed_claim_reuses_nothing(daemon: Daemon, engine: Engine, cold: list[int]) -> None:
    granted = grant(daemon, "alice")
    claim = daemon.claim("alice", granted.salt, granted.generation, uses=2)
    answers = [engine.ask(Ask(TOKENS, granted.salt, claim))[0] for _ in range(4)]
    assert [answer.cached for answer in answers] == [WHOLE, WHOLE, 0, 0]
    assert all(answer.tokens == cold for answer in answers)


def test_invalid_claims_beside_valid_ones_do_not_disturb_them(
    daemon: Daemon, engine: Engine, cold: list[int]
) -> None:
    salt, bad = forged(daemon, "malformed")
    asks = []
    for _ in range(4):
        asks += [claimed(daemon, "alice", TOKENS)[1], Ask(TOKENS, salt, bad)]
    answers = engine.ask(*asks)
    assert [answer.cached for answer in answers] == [WHOLE, 0] * 4
    assert all(answer.tokens == cold for answer in answers)


def test_without_its_log_the_daemon_lets_nothing_be_reused(
    daemon: Daemon, engine: Engine, cold: list[int]
) -> None:
    assert ask(daemon, engine, "alice", TOKENS).cached == WHOLE
    fresh = prompt(33, 700)
    requests = [claimed(daemon, "alice", tokens)[1] for tokens in (TOKENS, TOKENS, fresh, fresh)]
    limit = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        in_engine = engine.ask(requests[0])[0]
        engine.reset()
        in_daemon = engine.ask(requests[1])[0]
        first, again = (engine.ask(request)[0] for request in requests[2:])
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, limit)
    assert [answer.cached for answer in (in_engine, in_daemon, first, again)] == [0] * 4
    assert in_engine.tokens == in_daemon.tokens == cold
    assert first.tokens == again.tokens

    def recovered() -> bool:
        return ask(daemon, engine, "alice", TOKENS).cached == WHOLE

    eventually(recovered, "the session's blocks are reused again")
    assert ask(daemon, engine, "alice", TOKENS).tokens == cold


def test_the_claim_never_reaches_the_engines_log(
    daemon: Daemon, engine: Engine, cold: list[int]
) -> None:
    _, request = claimed(daemon, "alice", TOKENS)
    engine.ask(request)
    reconnect(daemon, engine)
    logged = engine.log.read_text()
    assert request.claim.split(".")[-1] not in logged
    assert request.salt not in logged
