"""The ledger knows every destroyed key after a restart, and proves each certificate once."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.checkpoint import Ed25519Signer
from kvrun.audit.errors import AuditError
from kvrun.audit.proof import check_proof, parse_proof
from kvrun.erasure.job import ErasedKey
from kvrun.erasure.ledger import ErasureLedger

SIGNER = Ed25519Signer("w/d/host/erasures", Ed25519PrivateKey.generate())
NOW = 1_800_000_000.0


def ledger(folder: Path) -> ErasureLedger:
    return ErasureLedger.open(
        folder / "ledger", log_id="w/d/host/erasures", signer=SIGNER, now=lambda: NOW
    )


def keys(*ids: str) -> list[ErasedKey]:
    return [
        ErasedKey(key_id=key_id, generation=1, tenant_ref="t", session_ref="s") for key_id in ids
    ]


def test_entered_keys_are_known_after_a_restart(tmp_path: Path) -> None:
    first = ledger(tmp_path)
    first.enter("job", "w", "d", keys("aa", "bb"))
    first.certified("job", "w", "d", "0" * 64)
    first.enter("job-2", "w", "d", keys("cc"))
    assert first.destroyed_keys == {"aa", "bb", "cc"}
    first.close()
    again = ledger(tmp_path)
    assert again.destroyed_keys == {"aa", "bb", "cc"}
    again.close()


def test_a_certificate_is_recorded_once_and_proven(tmp_path: Path) -> None:
    held = ledger(tmp_path)
    for number in range(5):
        held.enter(f"job-{number}", "w", "d", keys(f"k{number}"))
        held.certified(f"job-{number}", "w", "d", f"{number:064x}")
    held.close()
    held = ledger(tmp_path)
    twice = [held.certified("job-3", "w", "d", f"{3:064x}") for _ in range(2)]
    assert twice[0].record == twice[1].record
    for inclusion in twice:
        proof = parse_proof(inclusion.proof.encode())
        assert check_proof(proof, inclusion.record.encode(), [SIGNER.key]) is not None
        assert check_proof(proof, inclusion.record.encode()[:-1], [SIGNER.key]) is None
    held.close()
    text = "".join(path.read_text() for path in (tmp_path / "ledger").glob("*.jsonl"))
    assert text.count('"event":"certified"') == 5


def test_a_ledger_that_was_changed_is_refused(tmp_path: Path) -> None:
    held = ledger(tmp_path)
    held.enter("job", "w", "d", keys("aa"))
    held.close()
    (segment,) = (tmp_path / "ledger").glob("*.jsonl")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(line for line in lines if b'"aa"' not in line))
    with pytest.raises(AuditError):
        ledger(tmp_path)
