"""Whatever is wrong with a certificate has its own name, and nothing wrong passes."""

import base64
import json

import msgspec
import pytest
from certificate_corpus import CONTROL_CASES, Case
from certificate_world import (
    ISSUED,
    NOW,
    REQUESTED,
    SUBJECT,
    Issued,
    Operator,
    opening,
    parent,
    reseal,
    sign_payload,
    signing_key,
    statement,
)
from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit.attestation import Attestation
from kvrun.audit.proof import parse_proof
from kvrun.audit.record import format_time
from kvrun.audit.verdict import Code
from kvrun.erasure.certificate import (
    GpuEntry,
    Outcome,
    SnapshotRetention,
    StepEntry,
    VerificationEntry,
    complete_after,
    encode_statement,
)
from kvrun.erasure.check import check_certificate
from kvrun.erasure.commitment import ErasedSubject
from kvrun.erasure.document import make_certificate, sign_statement
from kvrun.erasure.errors import CertificateFormatError
from kvrun.erasure.report import CertificateReport, CheckName
from kvrun.erasure.trust import TrustAnchor, make_anchor, parse_anchor
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.signing import KeyPurpose

GOOD = Operator().issue()


def codes(report: CertificateReport) -> list[str]:
    return [str(item.code) for item in report.checks]


def failed(report: CertificateReport) -> list[str]:
    return [str(item.code) for item in report.checks if str(item.verdict) == "fail"]


def check(issued: Issued, **changes: object) -> CertificateReport:
    values: dict[str, object] = {"anchor": issued.anchor, "now": NOW, **changes}
    return check_certificate(issued.data, **values)  # type: ignore[arg-type]


def test_a_good_certificate_passes_every_check() -> None:
    report = check(GOOD, opening=GOOD.opening, subject="chat-7")
    assert codes(report) == [
        "well_formed",
        "signed",
        "understood",
        "trusted",
        "plausible",
        "included",
        "cosigned",
        "complete",
        "opened",
    ]
    assert report.exit_code == 0


@pytest.mark.parametrize("case", CONTROL_CASES, ids=lambda case: case.name)
def test_the_control_planes_log_is_asked_by_a_file_beside_it(case: Case) -> None:
    report = case.check()
    (found,) = [item for item in report.checks if item.name is CheckName.CONTROL_LOG]
    assert str(found.code) == case.expected
    assert report.exit_code == {"included": 0, "log_self_asserted": 2}.get(case.expected, 1)


def test_without_an_anchor_the_signer_is_self_asserted_and_the_status_2() -> None:
    report = check(GOOD, anchor=None)
    assert {"self_asserted", "log_self_asserted"} <= set(codes(report))
    assert not failed(report)
    assert report.exit_code == 2


def test_an_anchor_without_log_keys_leaves_the_log_self_asserted() -> None:
    anchor = parse_anchor(make_anchor(GOOD.anchor.keys, []))
    report = check(GOOD, anchor=anchor)
    assert "trusted" in codes(report)
    assert "log_self_asserted" in codes(report)
    assert report.exit_code == 2


def test_every_flipped_byte_is_a_failure() -> None:
    for place in range(len(GOOD.data)):
        data = bytearray(GOOD.data)
        data[place] ^= 1
        for anchor in (GOOD.anchor, None):
            report = check_certificate(bytes(data), anchor=anchor, now=NOW)
            assert report.exit_code == 1, (place, codes(report))


@given(st.integers(0, len(GOOD.data) - 1), st.integers(1, 255))
def test_any_changed_byte_is_a_failure(place: int, change: int) -> None:
    data = bytearray(GOOD.data)
    data[place] ^= change
    assert check_certificate(bytes(data), anchor=GOOD.anchor, now=NOW).exit_code == 1


@given(st.integers(0, len(GOOD.data) - 1), st.binary(min_size=1, max_size=3))
def test_anything_inserted_or_cut_off_is_a_failure(place: int, extra: bytes) -> None:
    for data in (GOOD.data[:place], GOOD.data[:place] + extra + GOOD.data[place:]):
        assert check_certificate(data, anchor=GOOD.anchor, now=NOW).exit_code == 1


@given(st.binary(max_size=300))
def test_noise_is_malformed(data: bytes) -> None:
    assert codes(check_certificate(data, anchor=None, now=NOW)) == ["malformed"]


def test_a_changed_byte_is_named_as_such() -> None:
    place = GOOD.data.index(b'"payload":"') + 100
    data = bytearray(GOOD.data)
    data[place] = ord("A") if data[place] != ord("A") else ord("B")
    assert codes(check_certificate(bytes(data), anchor=GOOD.anchor, now=NOW)) == ["changed"]


def test_a_changed_statement_is_a_bad_signature() -> None:
    document = json.loads(GOOD.data)
    payload = base64.b64decode(document["envelope"]["payload"])
    changed = payload.replace(b"DSAR-123", b"DSAR-124")
    document["envelope"]["payload"] = base64.b64encode(changed).decode()
    assert failed(_reencoded(document)) == ["bad_signature"]


def test_a_signature_over_another_payload_type_is_refused() -> None:
    document = json.loads(GOOD.data)
    document["envelope"]["payloadType"] = "application/json"
    assert failed(_reencoded(document)) == ["bad_signature"]


@pytest.mark.parametrize(
    "data",
    [
        GOOD.data.replace(b"kvrun-certificate/v1", b"kvrun-certificate/v2"),
        GOOD.data.replace(b'"format":"kvrun-certificate/v1"', b'"format":"other","new":1'),
    ],
)
def test_another_format_is_an_unknown_version(data: bytes) -> None:
    assert codes(check_certificate(data, anchor=GOOD.anchor, now=NOW)) == ["unknown_version"]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b"erasure-certificate/v1", b"erasure-certificate/v2", "unknown_version"),
        (b"in-toto.io/Statement/v1", b"in-toto.io/Statement/v2", "unknown_version"),
        (b"erasure-certificate/v1", b"key-deletion-record/v1", "malformed"),
        (b'"claim_class":"device"', b'"claim_class":"total"', "malformed"),
        (b'"claim_class":"device",', b'"claim_class":"device","note":"",', "malformed"),
        (b'"generation":12', b'"generation":-1', "malformed"),
        (b'"generation":12', b'"generation":12.0', "malformed"),
        (b'"generation":12', b'"generation":9007199254740992', "malformed"),
        (b'"reference":"DSAR-123"', b'"reference":"\\u0007"', "malformed"),
        (b'"name":"session"', b'"name":"account"', "malformed"),
        (b"Z", b"z", "malformed"),
    ],
)
def test_a_signed_statement_outside_the_format_is_refused(
    old: bytes, new: bytes, code: str
) -> None:
    payload = encode_statement(statement()).replace(old, new)
    operator = Operator()
    issued = sign_payload(operator, payload)
    assert codes(check(issued)) == ["well_formed", "signed", code]


def test_a_date_in_the_future_is_named() -> None:
    assert failed(check(GOOD, now=ISSUED - 301)) == ["from_the_future"]
    assert not failed(check(GOOD, now=ISSUED - 299))


def test_steps_out_of_order_are_named() -> None:
    late = [StepEntry(name="refused", at=format_time(ISSUED + 60))]
    assert failed(check(Operator().issue(statement(steps=late)))) == ["times_contradict"]


def test_a_signer_outside_the_anchor_is_named() -> None:
    stranger = Operator(signer=signing_key(9)).issue()
    report = check(stranger, anchor=GOOD.anchor)
    assert failed(report) == ["wrong_signer"]


def test_a_trusted_key_for_another_purpose_is_no_signer() -> None:
    other = signing_key(1, purpose=KeyPurpose.CLAIM)
    anchor = parse_anchor(make_anchor([other.public()], [Operator().log_signer.key]))
    assert failed(check(GOOD, anchor=anchor)) == ["wrong_signer"]
    with pytest.raises(CertificateFormatError, match="is for claims"):
        sign_statement(statement(), other)


def test_a_key_outside_its_validity_is_named() -> None:
    for change in ({"created_at": int(ISSUED) + 1}, {"valid_until": int(ISSUED)}):
        anchor = _anchor_with(**change)
        assert failed(check(GOOD, anchor=anchor)) == ["outside_validity"]


def test_a_revoked_signer_needs_a_witness_from_before() -> None:
    cosigned = int(ISSUED) + 60
    assert failed(check(GOOD, anchor=_anchor_with(revoked_at=cosigned))) == ["revoked_signer"]
    assert "revoked_later" in codes(check(GOOD, anchor=_anchor_with(revoked_at=cosigned + 1)))
    alone = Operator(cosigned_at=None).issue()
    revoked = _anchor_with(revoked_at=cosigned + 1)
    assert failed(check(alone, anchor=revoked)) == ["revoked_signer"]


def test_a_timestamp_of_its_checkpoint_counts_like_a_witness() -> None:
    alone = Operator(cosigned_at=None).issue()
    revoked = _anchor_with(revoked_at=int(ISSUED) + 60)
    note = parse_proof(json.loads(alone.data)["log"]["proof"].encode()).checkpoint
    before, after = ISSUED + 59, ISSUED + 61
    for code, time, problem, expected in (
        (Code.TIMESTAMPED, before, "", []),
        (Code.TIMESTAMPED, after, "", ["revoked_signer"]),
        (Code.TIMESTAMPED, before, "does not hold", ["revoked_signer"]),
        (Code.COMMITTED, before, "", ["revoked_signer"]),
    ):
        attested = [Attestation(note, "tsa", time, code, problem)]
        assert failed(check(alone, anchor=revoked, attested=attested)) == expected
    other = [Attestation(b"no note", "tsa", before, Code.TIMESTAMPED)]
    assert failed(check(alone, anchor=revoked, attested=other)) == ["revoked_signer"]


def test_whoever_has_a_revoked_key_cannot_date_a_certificate_back() -> None:
    """The thief has the signing key and even the log's, but not the witness's."""
    stolen = Operator(witness_seed=8, cosigned_at=int(ISSUED)).issue()
    revoked = _anchor_with(revoked_at=int(ISSUED) + 100_000)
    assert failed(check(stolen, anchor=revoked)) == ["revoked_signer"]


def test_a_log_that_does_not_contain_it_is_named() -> None:
    other = Operator().include("ab" * 32)
    issued = Issued(make_certificate(GOOD.signed, other), GOOD.signed, GOOD.anchor, b"")
    assert failed(check(issued)) == ["not_in_log"]


def test_a_proof_for_another_place_is_named() -> None:
    inclusion = Operator().include(GOOD.signed.digest)
    moved = msgspec.structs.replace(inclusion, proof=inclusion.proof.replace("index 4", "index 5"))
    issued = Issued(make_certificate(GOOD.signed, moved), GOOD.signed, GOOD.anchor, b"")
    assert failed(check(issued)) == ["not_in_log"]


def test_a_root_that_does_not_hold_the_record_is_named() -> None:
    """The log's own signature is good, over a tree without this record."""
    operator = Operator()
    mine, other = operator.include(GOOD.signed.digest), operator.include("ab" * 32)
    mixed = msgspec.structs.replace(mine, proof=other.proof)
    issued = Issued(make_certificate(GOOD.signed, mixed), GOOD.signed, GOOD.anchor, b"")
    assert failed(check(issued)) == ["wrong_log_root"]


def test_another_log_is_named() -> None:
    issued = Operator(log_id="kvrun.test/other").issue()
    assert failed(check(issued, anchor=GOOD.anchor)) == ["foreign_log"]


def test_a_checkpoint_by_another_key_is_named() -> None:
    issued = Operator(log_seed=9).issue()
    assert failed(check(issued, anchor=GOOD.anchor)) == ["log_not_signed"]


def test_a_broken_cosignature_is_named() -> None:
    issued = Operator().issue()
    forged = Operator(witness_seed=3).issue()
    document = json.loads(forged.data)
    line = document["log"]["proof"].splitlines()[-1]
    raw = bytearray(base64.b64decode(line.split()[-1]))
    raw[-1] ^= 1
    new = line.replace(line.split()[-1], base64.b64encode(raw).decode())
    document["log"]["proof"] = document["log"]["proof"].replace(line, new)
    assert failed(_reencoded(document)) == ["bad_cosignature"]
    assert not failed(check(issued))


def test_an_opening_shows_whom_it_is_about_and_no_other_does() -> None:
    assert failed(check(GOOD, opening=opening(salt=1))) == ["bad_opening"]
    other = ErasedSubject(
        kind=SUBJECT.kind, id="chat-8", workspace="acme", deployment="support", tenant="alice"
    )
    assert failed(check(GOOD, opening=opening(other))) == ["bad_opening"]
    assert failed(check(GOOD, opening=b"{}")) == ["bad_opening"]
    assert failed(check(GOOD, opening=GOOD.opening + b"\n")) == ["bad_opening"]
    assert failed(check(GOOD, opening=GOOD.opening, subject="chat-8")) == ["other_subject"]
    assert failed(check(GOOD, subject="chat-7")) == ["bad_opening"]


def test_the_subject_cannot_be_guessed_without_the_salt() -> None:
    guess = opening(salt=0)
    assert guess != GOOD.opening
    assert b"chat-7" not in base64.b64decode(json.loads(GOOD.data)["envelope"]["payload"])
    assert b"alice" not in base64.b64decode(json.loads(GOOD.data)["envelope"]["payload"])


def test_class_logical_is_a_key_deletion_record() -> None:
    issued = Operator().issue(statement(claim_class=ClaimClass.LOGICAL))
    assert b"key-deletion-record/v1" in base64.b64decode(
        json.loads(issued.data)["envelope"]["payload"]
    )
    report = check(issued)
    assert "logical_only" in codes(report)
    assert "complete" not in codes(report)


def test_it_is_not_complete_while_a_declared_snapshot_may_exist() -> None:
    retention = SnapshotRetention(root=1, machine=30)
    late = statement(
        snapshot_retention_days=retention, complete_after=complete_after(REQUESTED, retention)
    )
    issued = Operator().issue(late)
    assert "not_yet_complete" in codes(check(issued))
    assert "complete" in codes(check(issued, now=REQUESTED + 31 * 86_400))


def test_an_instance_that_did_not_confirm_stays_visible() -> None:
    issued = Operator().issue(statement(unacknowledged=["instance i-2, lease ended 12:00:30"]))
    report = check(issued)
    assert "unacknowledged" in codes(report)
    assert "i-2" in next(item.detail for item in report.checks if item.name == "erasure")


def test_pages_that_were_still_held_stay_visible() -> None:
    issued = Operator().issue(statement(gpu=GpuEntry(evicted=3, scrubbed=0, held=3)))
    report = check(issued)
    assert "pages_held" in codes(report)
    assert "complete" not in codes(report)
    assert report.exit_code == 0


def test_a_failed_verification_fails_the_certificate() -> None:
    bad = [VerificationEntry(name="canary", outcome=Outcome.FAIL)]
    assert failed(check(Operator().issue(statement(verification=bad)))) == ["verification_failed"]


def test_a_class_without_destroyed_keys_is_a_contradiction() -> None:
    for change in ({"keys": []}, {"root": None}, {"claim_class": None}):
        issued = Operator().issue(statement(**change))
        assert failed(check(issued)) == ["claim_contradicts"], change


def test_nothing_held_is_said_as_such() -> None:
    issued = Operator().issue(statement(keys=[], root=None, claim_class=None, tiers=[]))
    assert "nothing_held" in codes(check(issued))


def test_a_parent_lists_its_children() -> None:
    report = check(Operator().issue(parent()))
    assert report.exit_code == 0
    assert "lists_children" in codes(report)
    assert report.statement is not None
    assert [item.outcome for item in report.statement.children] == ["erased", "nothing_held"]


def test_the_same_statement_signs_to_the_same_bytes() -> None:
    assert Operator().issue().data == GOOD.data


def _anchor_with(**changes: object) -> TrustAnchor:
    operator = Operator(signer=signing_key(1, **changes))
    return operator.anchor()


def _reencoded(document: dict[str, object]) -> CertificateReport:
    """By somebody who knows how to make the checksum fit."""
    return check_certificate(reseal(document), anchor=GOOD.anchor, now=NOW)
