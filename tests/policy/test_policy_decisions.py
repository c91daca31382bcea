"""Who decides what: default deny, documents that only narrow each other, and unknown attributes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import EU, US, revision

from kvrun.policy.compile import (
    CompiledRevision,
    aged_table,
    builtin_table,
    closed_table,
    warned_table,
)
from kvrun.policy.diff import UNKNOWN, diff_decisions, diff_documents
from kvrun.policy.document import Tier
from kvrun.policy.errors import PolicyRejectedError
from kvrun.policy.matching import InstanceFacts, Place, Tenant, Why
from kvrun.policy.simulate import RecordedPlacement, simulate
from kvrun.policy.testing import explain, run_tests

HERE = InstanceFacts(region="eu-west-1")
EU_TENANT, US_TENANT, NOBODY = Tenant("eu"), Tenant("us"), Tenant()
BASE = """\
apiVersion: kvrun.dev/v1
kind: ResidencyPolicy
metadata: {name: base}
allow:
  tiers: [gpu, memory, disk, object]
  regions: ["*"]
  ttl: 30d
  max_bytes: 10GiB
"""


def _allowed(texts: tuple[str, ...], tenant: Tenant, facts: InstanceFacts = HERE) -> list[bool]:
    return [decision.allowed for decision in CompiledRevision(revision(*texts), facts).row(tenant)]


def test_who_no_document_is_about_is_denied_everything() -> None:
    assert _allowed((EU,), US_TENANT) == [False] * 4
    row = CompiledRevision(revision(EU), HERE).row(US_TENANT)
    assert {decision.why for decision in row} == {Why.NO_MATCH}


def test_a_document_allows_its_tiers_in_its_regions_only() -> None:
    assert _allowed((EU,), EU_TENANT) == [True] * 4
    assert _allowed((US,), US_TENANT) == [False] * 4
    there = InstanceFacts(region="us-east-1")
    assert _allowed((US,), US_TENANT, there) == [True, True, False, False]
    assert _allowed((EU,), EU_TENANT, there) == [False] * 4


def test_storage_in_another_region_is_another_place() -> None:
    facts = InstanceFacts(region="eu-west-1", places={Tier.OBJECT: Place("us-east-1")})
    assert _allowed((EU,), EU_TENANT, facts) == [True, True, True, False]


def test_storage_classes_count_for_the_object_tier() -> None:
    text = EU.replace("  ttl: 7d\n", "  ttl: 7d\n  storage_classes: [STANDARD]\n")
    for name, allowed in (("STANDARD", True), ("GLACIER", False), ("", False)):
        facts = InstanceFacts(region="eu-west-1", places={Tier.OBJECT: Place("eu-west-1", name)})
        assert _allowed((text,), EU_TENANT, facts) == [True, True, True, allowed]


def test_documents_only_narrow_each_other() -> None:
    assert _allowed((BASE, EU), EU_TENANT, InstanceFacts(region="us-east-1")) == [False] * 4
    row = CompiledRevision(revision(BASE, EU), HERE).row(EU_TENANT)
    assert row[Tier.DISK].ttl_s == 7 * 86_400
    assert row[Tier.DISK].max_bytes == 10 << 30


def test_an_unknown_attribute_leaves_gpu_memory_and_only_where_a_document_allows_it() -> None:
    assert _allowed((BASE, EU), NOBODY) == [True, False, False, False]
    assert _allowed((EU, US), NOBODY) == [True, False, False, False]
    assert _allowed((US,), NOBODY) == [False] * 4
    row = CompiledRevision(revision(EU, US), HERE).row(NOBODY)
    assert row[Tier.DISK].why is Why.UNKNOWN_TENANT


def test_a_label_that_is_not_set_is_unknown_and_one_that_differs_is_no_match() -> None:
    text = BASE + "match:\n  labels: {contract: [gdpr]}\n"
    assert _allowed((text,), Tenant("eu")) == [True, False, False, False]
    assert _allowed((text,), Tenant("eu", labels=(("contract", "gdpr"),))) == [True] * 4
    assert _allowed((text,), Tenant("eu", labels=(("contract", "none"),))) == [False] * 4


def test_a_condition_narrows_and_one_that_cannot_be_said_is_unknown() -> None:
    text = BASE + "when: tenant.labels.plan == 'gold'\n"
    assert _allowed((text,), Tenant(labels=(("plan", "gold"),))) == [True] * 4
    assert _allowed((text,), Tenant(labels=(("plan", "free"),))) == [False] * 4
    assert _allowed((text,), Tenant()) == [True, False, False, False]


def test_documents_for_other_deployments_and_engines_do_not_count() -> None:
    for match in ("deployments: [other]", "engines: [sglang]", "workspaces: [w]", "models: [m]"):
        assert _allowed((BASE + f"match:\n  {match}\n",), EU_TENANT) == [False] * 4
    assert _allowed((BASE + "match:\n  instance_regions: ['eu-*']\n",), EU_TENANT) == [True] * 4


def test_without_a_repository_everything_is_allowed() -> None:
    assert all(decision.allowed for decision in builtin_table().row("x"))


def test_without_a_valid_policy_only_gpu_memory_is_and_not_for_another_region() -> None:
    table = closed_table(HERE, {"a": Tenant(region="us-east-1"), "b": Tenant(region="eu-west-1")})
    assert [d.allowed for d in table.row("a")] == [False] * 4
    assert [d.allowed for d in table.row("b")] == [True, False, False, False]
    assert [d.allowed for d in table.row("c")] == [True, False, False, False]


def test_a_policy_that_is_too_old_decides_about_gpu_memory_alone() -> None:
    compiled = CompiledRevision(revision(EU, US), HERE)
    table = aged_table(compiled.table({"e": EU_TENANT, "u": US_TENANT}))
    assert [d.allowed for d in table.row("e")] == [True, False, False, False]
    assert [d.allowed for d in table.row("u")] == [False] * 4
    assert table.row("e")[Tier.DISK].why is Why.TOO_OLD


tenants = st.builds(
    Tenant,
    st.sampled_from(["", "eu", "us", "other"]),
    st.sampled_from(["", "eu-west-1", "us-east-1"]),
    st.dictionaries(
        st.sampled_from(["plan", "contract", "x"]), st.sampled_from(["gold", "gdpr"]), max_size=3
    ).map(lambda labels: tuple(sorted(labels.items()))),
)
LABELLED = BASE.replace("name: base", "name: labelled") + (
    "match:\n  labels: {contract: [gdpr]}\nwhen: tenant.class != 'other'\n"
)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([EU, US, BASE, LABELLED]), unique=True), tenants, st.data())
def test_one_document_more_never_allows_what_those_that_matched_denied(
    texts: list[str], tenant: Tenant, data: st.DataObject
) -> None:
    more = data.draw(st.sampled_from([EU, US, BASE, LABELLED]))
    if not texts or more in texts:
        return
    facts = InstanceFacts(region=data.draw(st.sampled_from(["eu-west-1", "us-east-1", ""])))
    before = CompiledRevision(revision(*texts), facts).row(tenant)
    after = CompiledRevision(revision(*texts, more), facts).row(tenant)
    for was, is_ in zip(before, after, strict=True):
        assert was.allowed or not is_.allowed or was.why in (Why.NO_MATCH,)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([EU, US, BASE, LABELLED]), unique=True), tenants)
def test_the_table_says_what_an_explanation_says(texts: list[str], tenant: Tenant) -> None:
    found = revision(*texts)
    table = CompiledRevision(found, HERE).table({"t": tenant})
    for tier in Tier:
        assert table.decide("t", tier) == explain(found, HERE, tenant, tier).decision


def test_an_explanation_names_rule_file_line_and_every_document_that_had_a_say() -> None:
    found = explain(revision(BASE, EU), InstanceFacts(region="us-east-1"), EU_TENANT, Tier.DISK)
    assert (found.decision.rule, found.decision.where) == ("eu", "policies/p1.yaml:1")
    assert [(t.rule, t.refuses) for t in found.traces] == [("base", ""), ("eu", Why.REGION)]


def test_inline_tests_are_decided_by_the_whole_revision() -> None:
    assert run_tests(revision(EU)).failures == ()
    none = BASE.replace("[gpu, memory, disk, object]", "[gpu]")
    (failure,) = run_tests(revision(EU, none)).failures
    assert str(failure).startswith("policies/p0.yaml:19:5: test 'eu number 2': expected allow")
    assert "tier_not_allowed" in str(failure)


def test_the_difference_of_revisions_names_documents_fields_and_decisions() -> None:
    before, after = revision(EU, US), revision(EU.replace("disk, ", ""), BASE)
    changes = {change.rule: change for change in diff_documents(before, after)}
    assert {name: change.kind for name, change in changes.items()} == {
        "eu": "changed",
        "us": "removed",
        "base": "added",
    }
    assert changes["eu"].fields == (
        "allow.tiers: [gpu, memory, disk, object] -> [gpu, memory, object]",
    )
    known = {"e": EU_TENANT}
    flips = diff_decisions(
        CompiledRevision(before, HERE).table(known),
        CompiledRevision(after, HERE).table(known),
        [UNKNOWN, "e"],
    )
    lost = [(flip.tier, flip.example) for flip in flips if not flip.after.allowed]
    assert lost == [("disk", "e")]


def test_a_simulation_counts_what_would_come_out_differently() -> None:
    table = CompiledRevision(revision(US), HERE).table({"u": US_TENANT, "e": EU_TENANT})
    made = [
        RecordedPlacement(float(n), ref, (tier,), 2, 100, allowed=True, revision="builtin-1")
        for n, (ref, tier) in enumerate(itertools.product("ue", (Tier.MEMORY, Tier.DISK)))
    ]
    result = simulate(table, made)
    assert (result.placements, result.refused) == (4, 4)
    assert sum(group.placements for group in result.changes) == 4
    assert all(not group.now_allowed for group in result.changes)


SLOW = itertools.repeat(0.04)
"""An evaluation takes so many seconds here: one may, 251 together may not."""


def test_decisions_about_one_tenant_after_another_have_their_own_time_each() -> None:
    asks = BASE.replace("allow:", 'when: tenant.labels.n == "1"\nallow:')
    compiled = CompiledRevision(revision(asks), HERE, itertools.accumulate(SLOW).__next__)
    tenants = {str(n): Tenant("", "", (("n", str(n)),)) for n in range(400)}
    allowed = [n for n, tenant in tenants.items() if compiled.row(tenant)[Tier.GPU].allowed]
    assert allowed == ["1"]
    again = compiled.at(HERE)
    with pytest.raises(PolicyRejectedError, match="more than 10 s together"):
        again.table(tenants)


def test_labels_that_no_document_asks_for_cost_no_row() -> None:
    compiled = CompiledRevision(revision(EU), HERE)
    table = compiled.table({str(n): Tenant("eu", "", (("id", str(n)),)) for n in range(100)})
    assert len({id(row) for row in table.rows.values()}) == 1


@pytest.mark.parametrize("region", ["eu-*", "*"])
def test_an_instance_without_a_region_is_in_none(region: str) -> None:
    text = EU.replace("eu-*", region)
    assert _allowed((text,), EU_TENANT, InstanceFacts()) == [region == "*"] * 4


def test_in_mode_warn_neither_time_nor_size_is_bounded() -> None:
    bounded = revision(EU.replace("ttl: 7d", "ttl: 7d\n  max_bytes: 10MiB"))
    table = CompiledRevision(bounded, HERE).table({"t": Tenant("eu")})
    decision = table.decide("t", Tier.DISK)
    assert (decision.ttl_s, decision.max_bytes) == (7 * 86_400, 10 << 20)
    warned = warned_table(table).decide("t", Tier.DISK)
    assert (warned.allowed, warned.ttl_s, warned.max_bytes) == (True, None, None)
