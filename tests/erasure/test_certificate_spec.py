"""docs/spec/erasure-certificate.md and the independent vectors say what the code does."""

import base64
import json
import re
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
import rfc8785
from certificate_corpus import CASES, Case
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.erasure import certificate
from kvrun.erasure.certificate import decode_statement, encode_statement, payload_digest
from kvrun.erasure.check import check_certificate
from kvrun.erasure.commitment import commit, parse_opening
from kvrun.erasure.dsse import PAYLOAD_TYPE, key_id, pae
from kvrun.erasure.report import CheckCode, CheckName, verdict_of
from kvrun.erasure.trust import parse_anchor
from support import standalone

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spec/erasure-certificate.md").read_text()
VECTORS = json.loads((ROOT / "tests/vectors/erasure-certificate.json").read_text())
PAYLOAD = VECTORS["payload"].encode()


def test_the_vector_certificate_verifies() -> None:
    opening = VECTORS["opening"].encode()
    report = check_certificate(
        VECTORS["certificate"].encode(),
        anchor=parse_anchor(VECTORS["anchor"].encode()),
        now=VECTORS["now"],
        opening=opening,
        subject=parse_opening(opening).id,
        log_proof=VECTORS["log_proof"].encode(),
    )
    assert CheckName.CONTROL_LOG in {item.name for item in report.checks}
    assert {str(item.verdict) for item in report.checks} == {"pass"}


def test_the_vector_of_the_ledgers_own_proof_is_no_control_planes() -> None:
    given = (VECTORS["certificate"].encode(), VECTORS["log_proof_of_the_ledger"].encode())
    anchor = VECTORS["anchor"].encode()
    report = check_certificate(
        given[0], anchor=parse_anchor(anchor), now=VECTORS["now"], log_proof=given[1]
    )
    found = {item.name: item.code for item in report.checks}
    assert found[CheckName.LOG] is CheckCode.INCLUDED
    assert found[CheckName.CONTROL_LOG] is CheckCode.FOREIGN_LOG
    other = standalone.load()
    checks = other.check_certificate(
        given[0], anchor=other.read_anchor(anchor), now=VECTORS["now"], log_proof=given[1]
    )
    assert ("control_log", "fail", "foreign_log") in [item[:3] for item in checks]


def test_the_vector_with_held_pages_leaves_its_erasure_open() -> None:
    report = check_certificate(
        VECTORS["certificate_with_held_pages"].encode(),
        anchor=parse_anchor(VECTORS["anchor"].encode()),
        now=VECTORS["now"],
    )
    found = {item.name: item.code for item in report.checks}
    assert found[CheckName.ERASURE] is CheckCode.PAGES_HELD
    assert report.exit_code == 0


def test_payload_signature_and_commitment_are_the_vectors() -> None:
    assert encode_statement(decode_statement(PAYLOAD)) == PAYLOAD
    assert payload_digest(PAYLOAD) == VECTORS["digest"]
    signed = pae(PAYLOAD_TYPE, PAYLOAD)
    assert sha256(signed).hexdigest() == VECTORS["pae_sha256"]
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["signer_seed"]))
    assert private.sign(signed).hex() == VECTORS["signature"]
    assert key_id(private.public_key().public_bytes_raw()) == VECTORS["keyid"]
    assert commit(VECTORS["opening"].encode()) == VECTORS["commitment"]


def test_pae_is_the_one_of_the_dsse_specification() -> None:
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected


@pytest.mark.parametrize("name", ["payload", "opening", "certificate", "log_proof"])
def test_every_form_is_canonical_json(name: str) -> None:
    text = VECTORS[name].encode().removesuffix(b"\n")
    assert rfc8785.dumps(json.loads(text)) == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_statement_that_is_accepted_is_canonical_json(case: Case) -> None:
    if case.check().statement is not None:
        payload = base64.b64decode(json.loads(case.data)["envelope"]["payload"])
        assert rfc8785.dumps(json.loads(payload)) == payload


@pytest.mark.parametrize("code", CheckCode)
def test_every_code_is_described_with_its_verdict(code: CheckCode) -> None:
    row = re.search(rf"^\| `{code}` \| (\w+) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert row[1] == str(verdict_of(code))


@pytest.mark.parametrize("name", CheckName)
def test_every_check_is_described(name: CheckName) -> None:
    assert re.search(rf"^\| `{name}` \|", PAGE, re.MULTILINE)


def test_every_field_is_described() -> None:
    parts = [
        part
        for part in vars(certificate).values()
        if isinstance(part, type) and issubclass(part, msgspec.Struct)
    ]
    fields = {
        field.encode_name
        for part in parts
        if not part.__name__.startswith("_")
        for field in msgspec.structs.fields(part)
    }
    assert not {name for name in fields if f"`{name}`" not in PAGE}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_the_answer_that_it_stands_for(case: Case) -> None:
    assert case.expected in {str(item.code) for item in case.check().checks}


def test_the_corpus_meets_every_code() -> None:
    met = {str(item.code) for case in CASES for item in case.check().checks}
    assert met == {str(code) for code in CheckCode}
