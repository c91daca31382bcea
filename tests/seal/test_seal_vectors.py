"""The package against test vectors that an independent script made from the specification."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvrun.seal import (
    BlockIdentity,
    BlockSealer,
    ContextEncoder,
    EnvelopeFormatError,
    IntegrityError,
    SessionContext,
    WrongKeyOrContextError,
    parse_header,
)

FOLDER = Path(__file__).parents[1] / "vectors"
VECTORS = json.loads((FOLDER / "sealed-block.json").read_text())
VALID = {case["name"]: case for case in VECTORS["valid"]}


def unhex(value: str) -> bytes:
    return bytes.fromhex(value)


def context_of(case: dict) -> bytes:
    session = case["session"] | {"fingerprint": unhex(case["session"]["fingerprint"])}
    block = case["block"] | {"block_hash": unhex(case["block"]["block_hash"])}
    return ContextEncoder(SessionContext(**session)).encode(BlockIdentity(**block))


def sealer_of(case: dict) -> BlockSealer:
    return BlockSealer(bytearray(unhex(case["dek"])), generation=case["session"]["generation"])


@pytest.mark.parametrize("case", VALID.values(), ids=VALID)
def test_the_context_is_the_vectors(case):
    assert context_of(case).hex() == case["context"]


@pytest.mark.parametrize("case", VALID.values(), ids=VALID)
def test_sealing_gives_the_vectors_bytes(case):
    plain = unhex(case["plaintext"])
    out = bytearray(len(plain) + 88)
    sealer_of(case).seal_into(context_of(case), plain, out, salt=unhex(case["salt"]))
    assert out.hex() == case["sealed"]


@pytest.mark.parametrize("case", VALID.values(), ids=VALID)
def test_the_vectors_bytes_open(case):
    sealed = unhex(case["sealed"])
    out = bytearray(len(sealed) - 88)
    sealer_of(case).open_into(context_of(case), sealed, out)
    assert out.hex() == case["plaintext"]


@pytest.mark.parametrize("case", VALID.values(), ids=VALID)
def test_the_header_says_what_the_vector_says(case):
    header = parse_header(unhex(case["sealed"]))
    assert header.generation == case["session"]["generation"]
    assert header.salt.hex() == case["salt"]
    assert header.commitment.hex() == case["commitment"]
    assert header.plain_bytes == len(unhex(case["plaintext"]))


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["name"])
def test_a_refused_vector_is_refused_for_the_stated_reason(case):
    original, sealed = VALID[case["of"]], unhex(case["sealed"])
    out = bytearray(b"\xaa" * max(len(sealed) - 88, 0))
    kind, _, fault = case["error"].partition("/")
    expected = {
        "format": EnvelopeFormatError,
        "wrong-key-or-context": WrongKeyOrContextError,
        "integrity": IntegrityError,
    }[kind]
    with pytest.raises(expected) as caught:
        sealer_of(original).open_into(context_of(original), sealed, out)
    assert not any(out)
    if fault:
        assert caught.value.fault.value == fault


def test_the_vector_file_is_what_its_script_writes():
    script = FOLDER / "make_sealed_block.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
    assert not re.search(r"(import|from) kvrun", script.read_text())
