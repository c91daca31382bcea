"""The stand-alone verifier says of certificates exactly what ``kvrun verify`` says."""

import json
import random
from pathlib import Path

import msgspec
import pytest
from certificate_corpus import CASES, CONTROL, Case, control_anchor, misshapen
from certificate_world import NOW, Issued, Operator

from kvrun.erasure.check import check_certificate
from kvrun.erasure.logproof import make_log_proof
from support import standalone

OTHER = standalone.load()


def anchor_of(case: Case) -> object:
    return None if case.anchor is None else OTHER.read_anchor(case.anchor)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_say_the_same(case: Case) -> None:
    report = case.check()
    checks = OTHER.check_certificate(
        case.data,
        anchor=anchor_of(case),
        now=case.now,
        opening=case.opening,
        subject=case.subject,
        log_proof=case.log_proof,
    )
    assert [item[:3] for item in checks] == [
        (str(item.name), str(item.verdict), str(item.code)) for item in report.checks
    ]
    status = OTHER.exit_status([item[1] for item in checks], [item[2] for item in checks])
    assert status == report.exit_code


@pytest.mark.parametrize("seed", range(4))
def test_both_say_the_same_of_changed_bytes(seed: int) -> None:
    chance = random.Random(seed)
    good = Operator().issue()
    anchor = OTHER.read_anchor(msgspec.json.encode(good.anchor))
    for _ in range(150):
        data = bytearray(good.data)
        for _ in range(chance.choice((1, 1, 2))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        assert_same(bytes(data), good, anchor)


@pytest.mark.parametrize("part", ["envelope", "format", "log", "public_key", "sha256"])
def test_both_say_the_same_of_parts_of_another_type(part: str) -> None:
    good = Operator().issue()
    anchor = OTHER.read_anchor(msgspec.json.encode(good.anchor))
    for value in (None, 1, "", [], {}, [[]], {"": 1}, "\ud800", 1.5, True):
        document = {**json.loads(good.data), part: value}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        assert_same(text.encode() + b"\n", good, anchor)


def test_both_say_the_same_of_every_misshapen_statement() -> None:
    good = Operator().issue()
    anchor = OTHER.read_anchor(msgspec.json.encode(good.anchor))
    seen = set()
    for name, data in misshapen():
        report = check_certificate(data, anchor=good.anchor, now=NOW)
        checks = OTHER.check_certificate(data, anchor=anchor, now=NOW)
        codes = [str(item.code) for item in report.checks]
        assert [item[2] for item in checks] == codes, name
        seen |= set(codes)
    assert {"malformed", "unknown_version", "foreign_log", "understood"} <= seen


def assert_same(data: bytes, good: Issued, anchor: object) -> None:
    report = check_certificate(data, anchor=good.anchor, now=NOW)
    checks = OTHER.check_certificate(data, anchor=anchor, now=NOW)
    assert [item[2] for item in checks] == [str(item.code) for item in report.checks]


def test_the_command_takes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = Operator().issue()
    paths = {name: tmp_path / name for name in ("certificate.json", "anchor.json", "opening.json")}
    contents = (good.data, msgspec.json.encode(good.anchor), good.opening)
    for path, content in zip(paths.values(), contents, strict=True):
        path.write_bytes(content)
    certificate, anchor, opening = map(str, paths.values())
    arguments = [certificate, "--trust", anchor, "--opening", opening, "--subject", "chat-7"]
    assert OTHER.main(arguments) == 0
    assert "opened" in capsys.readouterr().out
    proof = tmp_path / "log-proof"
    proof.write_bytes(make_log_proof(CONTROL.include(good.signed.digest)))
    paths["anchor.json"].write_bytes(control_anchor())
    assert OTHER.main([certificate, "--trust", anchor, "--log-proof", str(proof)]) == 0
    assert "control_log pass     included" in capsys.readouterr().out
    proof.write_bytes(make_log_proof(Operator().include(good.signed.digest)))
    assert OTHER.main([certificate, "--trust", anchor, "--log-proof", str(proof)]) == 1
    assert "control_log fail     foreign_log" in capsys.readouterr().out
    proof.write_bytes(make_log_proof(CONTROL.include("ab" * 32)))
    assert OTHER.main([certificate, "--trust", anchor, "--log-proof", str(proof)]) == 1
    assert OTHER.main([certificate]) == 2
    assert OTHER.main([certificate, "--trust", certificate]) == 1
