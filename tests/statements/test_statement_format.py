"""docs/spec/statement.md and vectors by another program say what the code does."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.erasure.dsse import key_id
from kvrun.finetune.evaluation import (
    PREDICATE_TYPE,
    Evaluation,
    EvaluationPredicate,
)
from kvrun.isolation import report
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord, SigningKey
from kvrun.statements.document import (
    FORMAT,
    Signer,
    StatementError,
    judge_signer,
    read_statement,
    sign_statement,
)

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "spec"
VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/statement.json").read_text())
EVALUATION = VECTORS["evaluation"].encode()
ISOLATION = VECTORS["isolation"].encode()
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"]))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
SIGNER = SigningKey(key_id(PUBLIC), KeyPurpose.EVIDENCE, 1, 1_700_000_000, None, None, PRIVATE)


def test_the_vectors_are_read_and_signed_the_same() -> None:
    evaluation = read_statement(EVALUATION, PREDICATE_TYPE, EvaluationPredicate)
    assert evaluation.digest == VECTORS["evaluation_payload_sha256"]
    assert set(evaluation.subjects) == set(VECTORS["files"])
    again = sign_statement(PREDICATE_TYPE, evaluation.subjects, evaluation.predicate, SIGNER)
    assert again == EVALUATION
    isolation = report.read_result(ISOLATION)
    assert isolation.digest == VECTORS["isolation_payload_sha256"]
    assert report.sign_result(isolation.predicate, b"[deployment]\n", SIGNER) == ISOLATION
    assert report.object_name(isolation.predicate) == "isolation/20260131T120000250000Z.json"


@pytest.mark.parametrize("whole", [EVALUATION, ISOLATION], ids=["evaluation", "isolation"])
def test_file_and_payload_are_canonical_json(whole: bytes) -> None:
    outer = json.loads(whole)
    assert rfc8785.dumps(outer) + b"\n" == whole
    payload = base64.b64decode(outer["envelope"]["payload"])
    assert rfc8785.dumps(json.loads(payload)) == payload


def read(data: bytes) -> object:
    return read_statement(data, PREDICATE_TYPE, EvaluationPredicate)


def test_no_byte_can_be_changed_cut_off_or_added() -> None:
    source = random.Random(1)
    for _ in range(300):
        place = source.randrange(len(EVALUATION))
        damaged = bytearray(EVALUATION)
        damaged[place] ^= 1 << source.randrange(8)
        with pytest.raises(StatementError):
            read(bytes(damaged))
    for data in (
        EVALUATION[:-1],
        EVALUATION + b"\n",
        b"",
        b"\xff",
        EVALUATION[: len(EVALUATION) // 2],
    ):
        with pytest.raises(StatementError):
            read(data)


def resigned(change: dict[str, object]) -> bytes:
    """The evaluation's statement with changed fields, signed again by the same key."""
    outer = json.loads(EVALUATION)
    payload = json.loads(base64.b64decode(outer["envelope"]["payload"]))
    content = rfc8785.dumps({**payload, **change})
    kind = b"application/vnd.in-toto+json"
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(content), content)
    outer["envelope"]["payload"] = base64.b64encode(content).decode()
    outer["envelope"]["signatures"][0]["sig"] = base64.b64encode(PRIVATE.sign(pae)).decode()
    return rfc8785.dumps(outer) + b"\n"


SUBJECT = {"name": "a", "digest": {"sha256": "ab" * 32}}
PREDICATE = json.loads(base64.b64decode(json.loads(EVALUATION)["envelope"]["payload"]))["predicate"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subject": []}, "subjects"),
        ({"subject": [SUBJECT, SUBJECT]}, "rising order"),
        ({"subject": [{"name": "a", "digest": {"sha256": "AB" * 32}}]}, "digest"),
        ({"subject": [{"name": "a\n", "digest": {"sha256": "ab" * 32}}]}, "control character"),
        ({"predicateType": "https://kvrun.dev/erasure-certificate/v1"}, "of type"),
        ({"_type": "https://in-toto.io/Statement/v2"}, "of type"),
        ({"predicate": {**PREDICATE, "more": 1}}, "malformed"),
        ({"predicate": {**PREDICATE, "id": 1.5}}, "malformed"),
        ({"predicate": {**PREDICATE, "name": "a\x00"}}, "control character"),
        ({"predicate": {**PREDICATE, "issued_at": "2026-01-31"}}, "timestamp"),
    ],
)
def test_what_the_format_does_not_allow_is_refused_though_signed(
    change: dict[str, object], said: str
) -> None:
    assert read(resigned({})) is not None
    with pytest.raises(StatementError, match=said):
        read(resigned(change))


def test_only_evidence_keys_sign_and_none_that_is_revoked_or_out_of_time_is_trusted() -> None:
    signed = read_statement(EVALUATION, PREDICATE_TYPE, EvaluationPredicate)
    with pytest.raises(StatementError, match="not for evidence"):
        sign_statement(
            PREDICATE_TYPE,
            signed.subjects,
            signed.predicate,
            replace(SIGNER, purpose=KeyPurpose.CERTIFICATE),
        )
    key = SIGNER.public()

    def judged(**change: object) -> Signer:
        record: PublicKeyRecord = msgspec.structs.replace(key, **change)
        return judge_signer(signed, [record])[0]

    assert judge_signer(signed, [])[0] is Signer.SELF_ASSERTED
    assert judged() is Signer.TRUSTED
    assert judged(purpose="certificate") is Signer.REFUSED
    assert judged(revoked_at=2_000_000_000) is Signer.REFUSED
    assert judged(valid_until=1_700_000_001) is Signer.REFUSED
    assert judged(created_at=1_900_000_000) is Signer.REFUSED
    assert judged(valid_until=1_900_000_000) is Signer.TRUSTED


def test_the_pages_name_every_field_and_value() -> None:
    pages = {
        name: (SPEC / f"{name}.md").read_text(encoding="utf-8")
        for name in ("statement", "finetune-evaluation", "isolation-self-test")
    }
    assert FORMAT in pages["statement"]
    assert PREDICATE_TYPE in pages["finetune-evaluation"]
    assert report.PREDICATE_TYPE in pages["isolation-self-test"]
    for kind in (EvaluationPredicate, Evaluation):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in pages["finetune-evaluation"], name
    for kind in (report.IsolationPredicate, report.TimingEntry):
        for name in kind.__struct_fields__:
            assert f"`{name}`" in pages["isolation-self-test"], name
    for outcome in report.Outcome:
        assert f"`{outcome}`" in pages["isolation-self-test"]
