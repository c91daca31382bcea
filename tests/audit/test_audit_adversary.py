"""Every attack of the adversary leads to the verdict that the specification names."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import ATTACKS, LOG_ID, Attack, honest, omit_a_record_with_the_key, signer

from kvrun.audit.checkpoint import cosign_checkpoint
from kvrun.audit.files import verify_files
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.audit.verdict import Aspect, Code, Verdict, VerificationReport
from kvrun.audit.verify import Trust

WITNESS = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
WITNESS_KEY = VerifierKey(
    "witness.test/w1", COSIGNATURE_V1, WITNESS.public_key().public_bytes_raw()
)


def failures(report: VerificationReport) -> set[tuple[Aspect, Code]]:
    return {(f.aspect, f.code) for f in report.findings if f.verdict is Verdict.FAIL}


def test_an_honest_log_fails_nothing_and_claims_no_more_than_is_known(tmp_path: Path) -> None:
    world = honest(tmp_path)
    report = verify_files([world.folder], Trust(keys=(signer().key,)))
    assert not failures(report)
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
    assert report.verdict(Aspect.COMPLETENESS) is Verdict.UNKNOWN
    assert report.verdict(Aspect.FRESHNESS) is Verdict.UNKNOWN
    assert report.verdict(Aspect.WITNESSED) is Verdict.UNKNOWN
    assert (report.log_id, report.first_seq, report.next_seq) == (LOG_ID, 0, 62)
    assert report.exit_code == 0


def test_with_memory_a_witness_and_a_clock_all_four_pass(tmp_path: Path) -> None:
    world = honest(tmp_path)
    note = cosign_checkpoint(world.remembered, "witness.test/w1", WITNESS, 1_700_000_100)
    trust = Trust(
        keys=(signer().key,),
        witnesses=(WITNESS_KEY,),
        remembered=(note,),
        now=world.clock.time + 10,
        max_age_seconds=60,
    )
    report = verify_files([world.folder], trust)
    assert {aspect: report.verdict(aspect) for aspect in Aspect} == dict.fromkeys(
        Aspect, Verdict.PASS
    )


def test_a_forged_cosignature_fails_the_witnessed_verdict(tmp_path: Path) -> None:
    world = honest(tmp_path)
    note = cosign_checkpoint(world.remembered, "witness.test/w1", WITNESS, 1_700_000_100)
    other = VerifierKey("witness.test/w1", COSIGNATURE_V1, WITNESS_KEY.public_key)
    head, _, line = note.rstrip(b"\n").rpartition(b"\n")
    forged = head + b"\n" + line[:-8] + (b"AAAAAAA=" if line[-8:] != b"AAAAAAA=" else b"BBBBBBA=")
    trust = Trust(keys=(signer().key,), witnesses=(other,), remembered=(forged + b"\n",))
    report = verify_files([world.folder], trust)
    assert report.verdict(Aspect.WITNESSED) is Verdict.FAIL


def test_without_a_trusted_key_the_exit_code_says_self_asserted(tmp_path: Path) -> None:
    world = honest(tmp_path)
    report = verify_files([world.folder], Trust())
    assert not failures(report)
    assert report.exit_code == 2
    assert Code.SELF_ASSERTED in report.codes(Aspect.INTEGRITY)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.run.__name__)
def test_an_attack_leads_to_its_named_verdict_without_memory(
    tmp_path: Path, attack: Attack
) -> None:
    world = honest(tmp_path)
    attack.run(world)
    found = failures(verify_files([world.folder], Trust(keys=(signer().key,))))
    if attack.alone:
        assert attack.alone <= found
    else:
        assert not found, "the specification says that the log alone cannot show this"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.run.__name__)
def test_an_attack_leads_to_its_named_verdict_with_a_remembered_checkpoint(
    tmp_path: Path, attack: Attack
) -> None:
    world = honest(tmp_path)
    attack.run(world)
    trust = Trust(keys=(signer().key,), remembered=(world.remembered,))
    report = verify_files([world.folder], trust)
    assert attack.remembered
    assert attack.remembered <= failures(report)
    assert report.exit_code == 1


def test_an_omission_after_the_remembered_size_is_not_detected(tmp_path: Path) -> None:
    """Stated in the specification: only reconciliation with other counters shows it."""
    world = honest(tmp_path)
    omit_a_record_with_the_key(world)
    trust = Trust(keys=(signer().key,), remembered=(world.remembered,))
    assert not failures(verify_files([world.folder], trust))


def test_a_segment_from_the_middle_verifies_against_its_manifest(tmp_path: Path) -> None:
    world = honest(tmp_path)
    report = verify_files([world.segments()[1]], Trust(keys=(signer().key,)))
    assert not failures(report)
    assert report.first_seq > 0
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
    assert Code.STARTS_LATE in report.codes(Aspect.COMPLETENESS)


def test_a_middle_segment_without_a_manifest_proves_no_integrity(tmp_path: Path) -> None:
    world = honest(tmp_path)
    path = world.segments()[1]
    alone = tmp_path / path.name
    alone.write_bytes(path.read_bytes())
    report = verify_files([alone], Trust(keys=(signer().key,)))
    assert not failures(report)
    assert report.verdict(Aspect.INTEGRITY) is Verdict.UNKNOWN


def test_a_stale_log_and_one_from_the_future_fail_freshness(tmp_path: Path) -> None:
    world = honest(tmp_path)
    keys = (signer().key,)
    stale = Trust(keys=keys, now=world.clock.time + 1000, max_age_seconds=60)
    early = Trust(keys=keys, now=world.clock.time - 1000, max_age_seconds=60)
    assert (Aspect.FRESHNESS, Code.STALE) in failures(verify_files([world.folder], stale))
    found = failures(verify_files([world.folder], early))
    assert (Aspect.FRESHNESS, Code.FROM_THE_FUTURE) in found
