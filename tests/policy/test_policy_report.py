"""What was where at a time is added up from the log's records."""

from __future__ import annotations

from kvrun.audit.record import AuditEvent, Event, Outcome, Record, decode_record, encode_event
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Place
from kvrun.policy.report import Holding, holdings
from kvrun.policy.simulate import placements

FACTS = InstanceFacts(region="eu-west-1", places={Tier.OBJECT: Place("eu-central-1")})


def _log(*events: AuditEvent) -> list[Record]:
    return [
        decode_record(
            encode_event(
                event,
                log="w/d/i",
                epoch=0,
                seq=seq,
                prev="0" * 64,
                ts=f"2026-01-31T12:00:{seq:02d}.000000Z",
            )
        )
        for seq, event in enumerate(events)
    ]


def _of(event: Event, who: str = "a", **rest: object) -> AuditEvent:
    return AuditEvent(event=event, tenant_ref=who, session_ref=who * 2, **rest)  # type: ignore[arg-type]


LOG = _log(
    _of(Event.KEY_CREATED),
    _of(Event.SEALED, tier="memory", blocks=4, bytes=400),
    _of(Event.PERSISTED, tier="memory", tier_to="disk", blocks=4, bytes=400),
    _of(Event.KEY_CREATED, "b"),
    _of(Event.SEALED, "b", tier="memory", blocks=1, bytes=100),
    _of(Event.EVICTED, tier="memory", blocks=3, bytes=300),
    _of(Event.MOVED, tier="disk", tier_to="object", blocks=1, bytes=100),
    AuditEvent(event=Event.LOG_OPENED),
    _of(Event.KEY_DESTROYED),
)


def _held(at: str = "") -> dict[str, tuple[str, int, int, int]]:
    return {
        h.tier: (h.region, h.users, h.blocks, h.size_bytes)
        for h in holdings(LOG, FACTS, at)
        if h.tier != "log"
    }


def test_bytes_and_users_by_region_and_tier_before_a_time() -> None:
    assert _held("2026-01-31T12:00:07") == {
        "memory": ("eu-west-1", 2, 2, 200),
        "disk": ("eu-west-1", 1, 3, 300),
        "object": ("eu-central-1", 1, 1, 100),
        "keys": ("eu-west-1", 2, 2, 0),
    }


def test_a_restart_empties_memory_and_a_destroyed_key_takes_its_session_along() -> None:
    assert _held() == {
        "memory": ("eu-west-1", 0, 0, 0),
        "disk": ("eu-west-1", 0, 0, 0),
        "object": ("eu-central-1", 0, 0, 0),
        "keys": ("eu-west-1", 1, 1, 0),
    }


def test_the_log_itself_is_counted() -> None:
    (log,) = (holding for holding in holdings(LOG, FACTS) if holding.tier == "log")
    assert isinstance(log, Holding)
    assert log.blocks == len(LOG)
    assert log.size_bytes > 100 * len(LOG)


def test_placements_of_the_log_are_by_the_tier_that_blocks_went_to() -> None:
    found = [(p.tenant_ref, p.tier, p.blocks, p.allowed) for p in placements(LOG)]
    assert found == [
        ("a", Tier.MEMORY, 4, True),
        ("a", Tier.DISK, 4, True),
        ("b", Tier.MEMORY, 1, True),
        ("a", Tier.OBJECT, 1, True),
    ]


def test_only_denials_by_policy_are_placements() -> None:
    log = _log(
        _of(Event.DENIED, tier="disk", outcome=Outcome.DENIED, reason="residency: region eu"),
        _of(Event.DENIED, reason="the claim has expired"),
    )
    assert [(p.tier, p.allowed) for p in placements(log)] == [(Tier.DISK, False)]
