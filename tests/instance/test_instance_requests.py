"""A request's life at the daemon: only a live handle for a valid claim opens or seals."""

from __future__ import annotations

import secrets

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.claim import ClaimSigner
from kvrun.instance.client import AdminClient
from kvrun.instance.connection import Connection
from kvrun.instance.protocol import Match, Matched, Revoked, Role, SessionInvalidated, Verdict
from support.byhand import BLOCK_BYTES, TOKENS_PER_BLOCK, HandEngine, hello, wait_for
from support.client import eventually, grant
from support.daemon import Daemon


def blocks(count: int = 4) -> list[tuple[bytes, bytes]]:
    return [(secrets.token_bytes(32), secrets.token_bytes(BLOCK_BYTES)) for _ in range(count)]


def hashes(of: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [block_hash for block_hash, _ in of]


def admit(
    daemon: Daemon,
    engine: HandEngine,
    tenant: str,
    wanted: list[bytes],
    *,
    session: str = "default",
    request_id: str = "",
) -> Matched:
    granted = grant(daemon, tenant, session)
    claim = daemon.claim(
        tenant, granted.salt, granted.generation, session=session, request_id=request_id
    )
    answer = engine.match(claim, granted.salt, wanted)
    assert answer.verdict is Verdict.ADMITTED
    return answer


def stored(
    daemon: Daemon, engine: HandEngine, tenant: str, count: int = 4, session: str = "default"
) -> list[tuple[bytes, bytes]]:
    """Blocks that a finished request of the tenant sealed."""
    made = blocks(count)
    answer = admit(daemon, engine, tenant, hashes(made), session=session)
    assert answer.tiers == (bytes(count),)
    engine.store(answer.handle, made)
    eventually(
        lambda: all(admit(daemon, engine, tenant, hashes(made), session=session).tiers[0]),
        "the blocks are sealed",
    )
    engine.finish(answer.handle)
    return made


def test_sealed_blocks_open_to_what_was_stored(daemon: Daemon, engine: HandEngine) -> None:
    made = stored(daemon, engine, "alice")
    answer = admit(daemon, engine, "alice", hashes(made), request_id="opens")
    assert answer.tiers == (b"\1\1\1\1",)
    opened = engine.load(answer.handle, hashes(made))
    assert opened.plain == dict(made)
    assert opened.failed == []


def test_only_what_the_engine_used_and_the_daemon_opened_counts_as_reused(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "counted")

    def counts(request_id: str) -> tuple[int, int, int]:
        reuse = daemon.reuse(request_id)
        return reuse.engine_tokens, reuse.memory_tokens, reuse.disk_tokens

    def request(request_id: str, load: int, *started: tuple[int, int]) -> tuple[int, int, int]:
        answer = admit(daemon, engine, "counted", hashes(made), request_id=request_id)
        engine.load(answer.handle, hashes(made)[:load])
        for engine_tokens, loaded_tokens in started:
            engine.start(answer.handle, engine_tokens, loaded_tokens)
        engine.match("", "", handle=answer.handle)
        return counts(request_id)

    block = TOKENS_PER_BLOCK
    assert request("never-started", 4) == (0, 0, 0)
    assert request("all", 4, (0, 4 * block)) == (0, 4 * block, 0)
    assert request("said-twice", 4, (0, 4 * block), (0, 4 * block)) == (0, 4 * block, 0)
    assert request("claims-more", 2, (0, 9999)) == (0, 2 * block, 0)
    assert request("opened-nothing", 0, (block, 9999)) == (block, 0, 0)
    assert request("impossible", 4, (-5, -9999)) == (0, 0, 0)
    # A load that failed is asked for again; what it opened in vain is not reuse.
    answer = admit(daemon, engine, "counted", hashes(made), request_id="in-vain")
    engine.load(answer.handle, hashes(made))
    engine.match("", "", hashes(made), handle=answer.handle)
    engine.load(answer.handle, hashes(made)[:1])
    engine.start(answer.handle, 0, block)
    engine.match("", "", handle=answer.handle)
    assert counts("in-vain") == (0, block, 0)


@pytest.mark.parametrize(
    ("tenant", "session"), [("bob", "default"), ("alice", "other"), ("ALICE", "default")]
)
def test_nobody_else_finds_or_opens_them(
    daemon: Daemon, engine: HandEngine, tenant: str, session: str
) -> None:
    made = stored(daemon, engine, "alice")
    answer = admit(daemon, engine, tenant, hashes(made), session=session)
    assert answer.tiers == (bytes(4),)
    assert engine.load(answer.handle, hashes(made)).plain == {}
    again = admit(daemon, engine, "alice", hashes(made))
    assert engine.load(again.handle, hashes(made)).plain == dict(made)


def test_a_block_does_not_open_at_another_index(daemon: Daemon, engine: HandEngine) -> None:
    made = stored(daemon, engine, "shifted")
    answer = admit(daemon, engine, "shifted", hashes(made))
    before = daemon.count("integrity_failure")
    opened = engine.load(answer.handle, hashes(made), first=1)
    assert opened.plain == {}
    assert daemon.count("integrity_failure") > before


def test_forged_and_guessed_handles_open_and_seal_nothing(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "victim")
    live = admit(daemon, engine, "victim", hashes(made))
    guesses = [0, 1, 2, -1, live.handle + 2, live.handle ^ 1, 2**62, 2**63 - 1, 1 - 2**63]
    guesses += [secrets.randbits(62) for _ in range(50)]
    for guess in guesses:
        assert engine.load(guess, hashes(made)).plain == {}
        engine.store(guess, blocks(1))
        assert engine.match("", "", hashes(made), handle=guess or 3).verdict is Verdict.DENIED
    assert engine.load(live.handle, hashes(made)).plain == dict(made)


@pytest.mark.parametrize(
    "fault",
    [
        "none",
        "noise",
        "truncated",
        "expired",
        "not yet",
        "other deployment",
        "foreign key",
        "stolen key id",
        "other salt",
        "old generation",
        "unknown session",
        "stateless",
    ],
)
def test_an_invalid_claim_is_denied_and_logged(
    daemon: Daemon, engine: HandEngine, fault: str
) -> None:
    made = stored(daemon, engine, "claimed")
    granted = grant(daemon, "claimed")
    salt, generation = granted.salt, granted.generation
    good = daemon.claim("claimed", salt, generation)
    honest, daemon.signer = daemon.signer, ClaimSigner(Ed25519PrivateKey.generate())
    foreign = daemon.claim("claimed", salt, generation)
    daemon.signer = honest
    head, key_id, *_ = good.split(".")
    claims = {
        "none": "",
        "noise": "\u20ac" * 50,
        "truncated": good[:-4],
        "expired": daemon.claim("claimed", salt, generation, issued_ago_s=600, lifetime_s=60),
        "not yet": daemon.claim("claimed", salt, generation, issued_ago_s=-600),
        "other deployment": daemon.claim("claimed", salt, generation, deployment="other"),
        "foreign key": foreign,
        "stolen key id": ".".join([head, key_id, *foreign.split(".")[2:]]),
        "other salt": daemon.claim("bob", grant(daemon, "bob").salt, 1),
        "old generation": daemon.claim("claimed", salt, generation + 1),
        "unknown session": daemon.claim("claimed", salt, generation, session="never-opened"),
        "stateless": daemon.claim("claimed", salt, 0),
    }
    before = daemon.count("denied")
    answer = engine.match(claims[fault], salt, hashes(made))
    assert (answer.verdict, answer.handle, answer.tiers) == (Verdict.DENIED, 0, ())
    daemon.admin("flush")
    assert daemon.count("denied") == before + 1
    assert engine.match(good, salt, hashes(made)).tiers == (b"\1" * 4,)


@pytest.mark.parametrize("uses", [1, 3])
def test_a_claim_admits_as_often_as_it_says(daemon: Daemon, engine: HandEngine, uses: int) -> None:
    granted = grant(daemon, "replayed")
    claim = daemon.claim("replayed", granted.salt, granted.generation, uses=uses)
    verdicts = [engine.match(claim, granted.salt).verdict for _ in range(uses + 2)]
    assert verdicts == [Verdict.ADMITTED] * uses + [Verdict.DENIED] * 2


def test_an_admitted_request_asks_again_without_a_claim(daemon: Daemon, engine: HandEngine) -> None:
    made = blocks()
    first = admit(daemon, engine, "again", hashes(made))
    engine.store(first.handle, made)

    def found() -> bool:
        answer = engine.match("", "", hashes(made), handle=first.handle)
        assert answer.verdict is Verdict.ADMITTED
        return answer.tiers == (b"\1" * 4,)

    eventually(found, "the blocks are found with the same handle")


def test_a_finished_request_opens_nothing_but_its_late_stores_are_taken(
    daemon: Daemon, engine: HandEngine
) -> None:
    made = stored(daemon, engine, "finished")
    answer = admit(daemon, engine, "finished", hashes(made))
    engine.finish(answer.handle)
    eventually(
        lambda: engine.load(answer.handle, hashes(made)).plain == {}, "loads end with the request"
    )
    late = blocks(2)
    engine.store(answer.handle, late)
    eventually(
        lambda: admit(daemon, engine, "finished", hashes(late)).tiers == (b"\1\1",),
        "late stores are sealed",
    )


@pytest.mark.parametrize(
    ("hash_bytes", "data"), [(0, b"x" * 32), (-1, b"x" * 32), (65, b"x" * 65), (32, b"x" * 33)]
)
def test_hashes_that_do_not_add_up_are_denied(
    daemon: Daemon, engine: HandEngine, hash_bytes: int, data: bytes
) -> None:
    granted = grant(daemon, "odd")
    claim = daemon.claim("odd", granted.salt, granted.generation)
    engine.scheduler.send(Match(99, claim, granted.salt, hash_bytes, data, 16))
    answer = wait_for(engine.scheduler, Matched)
    assert isinstance(answer, Matched)
    assert answer.verdict is Verdict.DENIED


def test_a_session_that_is_erased_ends_its_handles_and_no_others(
    daemon: Daemon, engine: HandEngine
) -> None:
    mine = stored(daemon, engine, "erased", session="a")
    kept = stored(daemon, engine, "erased", session="b")
    live = admit(daemon, engine, "erased", hashes(mine), session="a")
    other = admit(daemon, engine, "erased", hashes(kept), session="b")
    old = grant(daemon, "erased", "a")
    gateway = Connection.connect(
        daemon.socket, hello(Role.GATEWAY, daemon.gateway_token), timeout_s=5
    )
    daemon.admin("erase_session", tenant="erased", session="a")
    began = SessionInvalidated("erased", "a", erasing=True)
    assert wait_for(gateway, SessionInvalidated) == began
    assert wait_for(gateway, SessionInvalidated) == SessionInvalidated("erased", "a")
    gateway.close()
    revoked = wait_for(engine.scheduler, Revoked)
    assert isinstance(revoked, Revoked)
    assert live.handle in revoked.handles
    assert other.handle not in revoked.handles
    assert engine.load(live.handle, hashes(mine)).plain == {}
    engine.store(live.handle, mine)
    stale = daemon.claim("erased", old.salt, old.generation, session="a")
    assert engine.match(stale, old.salt, hashes(mine)).verdict is Verdict.DENIED
    fresh = grant(daemon, "erased", "a")
    assert fresh.salt != old.salt
    assert fresh.generation > old.generation
    assert admit(daemon, engine, "erased", hashes(mine), session="a").tiers == (bytes(4),)
    assert engine.load(other.handle, hashes(kept)).plain == dict(kept)


def test_a_gateway_that_missed_a_new_key_is_told_when_its_claim_is_denied(
    daemon: Daemon, engine: HandEngine
) -> None:
    gateway = Connection.connect(
        daemon.socket, hello(Role.GATEWAY, daemon.gateway_token), timeout_s=5
    )
    granted = grant(daemon, "expired")
    stale = daemon.claim("expired", granted.salt, granted.generation + 1)
    assert engine.match(stale, granted.salt).verdict is Verdict.DENIED
    assert wait_for(gateway, SessionInvalidated) == SessionInvalidated("expired", "default")
    gateway.close()


def test_an_erased_tenant_loses_every_session(daemon: Daemon, engine: HandEngine) -> None:
    sessions = {name: stored(daemon, engine, "leaving", session=name) for name in ("a", "b")}
    bystander = stored(daemon, engine, "staying")
    erased = daemon.admin("erase_tenant", tenant="leaving")
    assert isinstance(erased, list)
    assert len(erased) == 2
    assert {entry["memory_blocks"] for entry in erased} == {4}
    for name, made in sessions.items():
        assert admit(daemon, engine, "leaving", hashes(made), session=name).tiers == (bytes(4),)
    assert admit(daemon, engine, "staying", hashes(bystander)).tiers == (b"\1" * 4,)


def test_when_the_engine_goes_its_handles_end_and_its_staging_is_zeroed(daemon: Daemon) -> None:
    engine = HandEngine(daemon.socket, daemon.engine_token)
    made = stored(daemon, engine, "gone")
    answer = admit(daemon, engine, "gone", hashes(made))
    taken = engine.slots.take()
    assert taken is not None
    engine.region.slot(taken[0], BLOCK_BYTES)[:] = b"\x5a" * BLOCK_BYTES
    engine.close()
    eventually(lambda: not any(engine.region.view), "the daemon zeroes the staging memory")
    status = daemon.admin("status")
    assert isinstance(status, dict)
    assert (status["engine"], status["requests"]) == ("", 0)
    with HandEngine(daemon.socket, daemon.engine_token) as later:
        assert later.load(answer.handle, hashes(made)).plain == {}
        fresh = admit(daemon, later, "gone", hashes(made))
        assert later.load(fresh.handle, hashes(made)).plain == dict(made)


def test_released_slots_are_zero_before_they_are_free(daemon: Daemon, engine: HandEngine) -> None:
    # ``HandEngine`` looks into every slot when the daemon says that it is free.
    made = stored(daemon, engine, "zeroed", count=8)
    answer = admit(daemon, engine, "zeroed", hashes(made))
    assert engine.load(answer.handle, hashes(made)).plain == dict(made)
    assert not any(engine.region.view)


def test_a_request_that_was_denied_says_why_to_the_command_line(
    daemon: Daemon, engine: HandEngine
) -> None:
    granted = grant(daemon, "told")
    claim = daemon.claim("told", granted.salt, granted.generation + 5, request_id="told-why")
    engine.match(claim, granted.salt)
    assert "destroyed" in daemon.reuse("told-why").denied
    with AdminClient(daemon.socket, daemon.admin_token) as client:
        assert client.call("status")
