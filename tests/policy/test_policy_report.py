"""What was where at a time is added up from the log's records."""

from __future__ import annotations

from kvrun.audit.record import AuditEvent, Event, Outcome, Record, decode_record, encode_event
from kvrun.policy.compile import Decision, PolicyTable
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Place, Why
from kvrun.policy.observed import places_text
from kvrun.policy.report import Holding, holdings
from kvrun.policy.simulate import placements, simulate
from kvrun.policy.violations import ViolationKind, violations

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


def test_a_placement_needs_every_tier_on_its_way() -> None:
    """Who is not served places nothing, and what memory may not hold comes no further."""
    yes, no = Decision(allowed=True), Decision(allowed=False, why=Why.TIER)

    def refused(*row: Decision) -> list[str]:
        gpu, memory, disk, object_ = row
        table = PolicyTable("r", (gpu, memory, disk, object_))
        log = _log(
            _of(Event.ALLOCATED, tier="gpu"),
            _of(Event.SEALED, tier="memory", blocks=1, bytes=1),
            _of(Event.PERSISTED, tier="memory", tier_to="disk", blocks=1, bytes=1),
            _of(Event.PERSISTED, tier="memory", tier_to="object", blocks=1, bytes=1),
            _of(Event.RESTORED, tier="disk", tier_to="memory", blocks=1, bytes=1),
        )
        return [
            placement.tier.name
            for placement in placements(log)
            if simulate(table, [placement]).refused
        ]

    assert refused(yes, yes, yes, yes) == []
    assert refused(no, yes, yes, yes) == ["GPU", "MEMORY", "DISK", "OBJECT", "MEMORY"]
    assert refused(yes, no, yes, yes) == ["MEMORY", "DISK", "OBJECT", "MEMORY"]
    assert refused(yes, yes, no, yes) == ["DISK", "MEMORY"]
    assert refused(yes, yes, yes, no) == ["OBJECT"]


def test_only_denials_by_policy_are_placements() -> None:
    log = _log(
        _of(Event.DENIED, tier="disk", outcome=Outcome.DENIED, reason="residency: region eu"),
        _of(Event.DENIED, reason="the claim has expired"),
    )
    assert [(p.tier, p.allowed) for p in placements(log)] == [(Tier.DISK, False)]


def test_regions_are_those_that_the_log_names_from_before_that_time() -> None:
    moved = InstanceFacts(region="eu-north-1", places={Tier.OBJECT: Place("")})
    log = _log(
        _of(Event.SEALED, tier="memory", blocks=1, bytes=10),
        AuditEvent(event=Event.POLICY_ACTIVATED, reason="active" + places_text(FACTS)),
        AuditEvent(event=Event.POLICY_ACTIVATED, reason="a text of another version"),
        AuditEvent(event=Event.POLICY_ACTIVATED, reason="active" + places_text(moved)),
    )

    def regions(at: str) -> dict[str, tuple[str, bool]]:
        return {h.tier: (h.region, h.recorded) for h in holdings(log, InstanceFacts(), at)}

    assert regions("2026-01-31T12:00:01")["memory"] == ("", False)
    then = regions("2026-01-31T12:00:03")
    assert (then["disk"], then["object"]) == (("eu-west-1", True), ("eu-central-1", True))
    assert (then["keys"], then["log"]) == (("eu-west-1", True), ("eu-west-1", True))
    now = regions("")
    assert (now["memory"], now["object"]) == (("eu-north-1", True), ("", True))


def test_what_is_in_a_bucket_that_was_seen_elsewhere_is_misplaced() -> None:
    seen = InstanceFacts(region="eu-west-1", places={Tier.OBJECT: Place("")})
    kept = _of(Event.MOVED, tier="memory", tier_to="object", blocks=1, bytes=100)
    refused = _of(Event.DENIED, tier="object", outcome=Outcome.DENIED, reason="residency: why eu")
    as_declared = AuditEvent(event=Event.POLICY_ACTIVATED, reason="active" + places_text(FACTS))
    as_seen = AuditEvent(event=Event.POLICY_ACTIVATED, reason="active" + places_text(seen))

    def in_force(facts: InstanceFacts) -> PolicyTable:
        yes, no = Decision(allowed=True), Decision(allowed=False, why=Why.REGION)
        here = facts.place(Tier.OBJECT).region == "eu-central-1"
        return PolicyTable("r", (yes, yes, yes, yes if here else no))

    def found(*events: AuditEvent) -> list[tuple[ViolationKind, str]]:
        entries = violations(_log(*events), FACTS, in_force).entries
        return [(entry.kind, entry.region) for entry in entries]

    assert found(as_declared, kept) == []
    assert found(as_declared, refused, kept, as_seen) == [
        (ViolationKind.MISPLACED, ""),
        (ViolationKind.DENIED, "eu-central-1"),
    ]
