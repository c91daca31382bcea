"""Every attack of the adversary leads to the verdict that the specification names."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import (
    ATTACKS,
    BEYOND,
    LOG_ID,
    Attack,
    World,
    honest,
    never_write_a_record,
    run_a_clock_that_was_wrong_all_along,
    set_the_clock_forward,
    signer,
)

from kvrun.audit.checkpoint import cosign_checkpoint
from kvrun.audit.cursor import read_records
from kvrun.audit.files import verify_files
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.audit.verdict import Aspect, Code, Verdict, VerificationReport
from kvrun.audit.verify import Trust
from kvrun.control.reconcile import Counts, Sample, reconcile

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


@pytest.mark.parametrize("attack", BEYOND, ids=lambda attack: attack.__name__)
def test_what_lies_beyond_the_log_passes_as_the_specification_says(
    tmp_path: Path, attack: Callable[[World], None]
) -> None:
    world = honest(tmp_path)
    honest_lines = world.lines()
    attack(world)
    assert world.lines() != honest_lines
    trust = Trust(keys=(signer().key,), remembered=(world.remembered,))
    found = failures(verify_files([world.folder], trust))
    if attack is run_a_clock_that_was_wrong_all_along:
        # Only because the records were honest when they were remembered.
        assert found == {(Aspect.INTEGRITY, Code.FORKED)}
        found = failures(verify_files([world.folder], Trust(keys=(signer().key,))))
    assert not found


def test_a_record_that_was_never_written_shows_in_the_counts_of_requests(tmp_path: Path) -> None:
    world = honest(tmp_path)

    def counted() -> int:
        return sum(1 for record in read_records(world.folder) if record.request_id)

    def findings() -> list[str]:
        begin = Counts(finished=0, in_flight=0)
        end = Counts(finished=60, in_flight=0)
        sample = Sample(engine=begin, gateway=begin), Sample(engine=end, gateway=end)
        return [found.side for found in reconcile(LOG_ID, *sample, counted())]

    assert findings() == []
    never_write_a_record(world)
    assert findings() == ["engine", "gateway"]


def test_a_clock_set_forward_shows_to_whoever_knows_the_time(tmp_path: Path) -> None:
    world = honest(tmp_path)
    now = world.clock.time + 10
    set_the_clock_forward(world)
    found = failures(verify_files([world.folder], Trust(keys=(signer().key,), now=now)))
    assert found == {(Aspect.FRESHNESS, Code.FROM_THE_FUTURE)}


def test_a_clock_that_was_wrong_all_along_contradicts_a_witness(tmp_path: Path) -> None:
    """A cosignature states when it was made: two days after the records say they were written."""
    world = honest(tmp_path)
    run_a_clock_that_was_wrong_all_along(world)
    note = cosign_checkpoint(
        (world.folder / "checkpoint").read_bytes(), "witness.test/w1", WITNESS, 1_700_000_100
    )
    trust = Trust(keys=(signer().key,), witnesses=(WITNESS_KEY,), remembered=(note,))
    report = verify_files([world.folder], trust)
    assert not failures(report)
    details = {item.code: item.detail for item in report.findings}
    assert "2023-11-12T" in details[Code.LAST_RECORD]
    assert "2023-11-14T" in details[Code.COSIGNED]


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
