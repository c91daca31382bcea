"""docs/spec/audit-log.md and the independent vectors say what the code does."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulator import ATTACKS, BEYOND, World

from kvrun.audit.chain import ChainPoint, ChainWalker, genesis
from kvrun.audit.checkpoint import (
    Checkpoint,
    Ed25519Signer,
    cosign_checkpoint,
    sign_checkpoint,
)
from kvrun.audit.merkle import blocks_root, inclusion_proof, tree_root
from kvrun.audit.note import parse_verifier_key
from kvrun.audit.proof import LogProof, check_proof, parse_proof
from kvrun.audit.record import Event, Record, decode_record
from kvrun.audit.verdict import Aspect, Code, Verdict
from kvrun.audit.verify import SegmentSource, Trust, verify_log

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spec/audit-log.md").read_text()
VECTORS = json.loads((ROOT / "tests/vectors/audit-log.json").read_text())
EXAMPLES = re.findall(r"^(\{\"blocks.*\}|\{\"deployment.*\}|\{\"epoch.*\})$", PAGE, re.MULTILINE)


def test_every_event_has_exactly_one_example_and_each_is_a_valid_record() -> None:
    events = [decode_record(line.encode()).event for line in EXAMPLES]
    assert sorted(events) == sorted(Event)


def test_the_page_names_the_events_that_nothing_writes_yet() -> None:
    sentence = PAGE.split("This version writes all of them but", 1)[1].split(":", 1)[0]
    writers = (ROOT / "src/kvrun").rglob("*.py")
    # What only lists events or reads records of them writes none.
    formats = ("record.py", "ocsf.py", "otlp.py", "tally.py", "held.py", "simulate.py")
    code = "".join(file.read_text() for file in writers if file.name not in formats)
    written = {Event[name] for name in re.findall(r"\bEvent\.([A-Z_]+)", code)}
    assert set(re.findall(r"`(\w+)`", sentence)) == set(Event) - written


def test_no_example_shows_more_than_references() -> None:
    for line in EXAMPLES:
        record = decode_record(line.encode())
        for reference in (record.tenant_ref, record.session_ref):
            assert re.fullmatch(r"([0-9a-f]{32})?", reference)


@pytest.mark.parametrize("name", Record.__struct_fields__)
def test_every_field_is_described(name: str) -> None:
    assert re.search(rf"^\| `{name}` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("code", Code)
def test_every_finding_is_described(code: Code) -> None:
    assert re.search(rf"^\| `{code}` \|", PAGE, re.MULTILINE)


def table_of(section: str) -> dict[str, list[str]]:
    """The first table of a section: first cell to the other cells."""
    text = PAGE.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[2:]}


def title(attack: Callable[[World], None]) -> str:
    return attack.__name__.replace("_", " ")


def test_the_page_lists_every_attack_with_what_the_tests_find_and_no_other() -> None:
    def cell(findings: frozenset[tuple[Aspect, Code]]) -> str:
        return "; ".join(sorted(f"{aspect} `{code}`" for aspect, code in findings)) or "passes"

    tested = {title(a.run): [cell(a.alone), cell(a.remembered)] for a in ATTACKS}
    assert table_of("Attacks and findings") == tested


def test_the_page_lists_what_lies_beyond_the_log() -> None:
    assert list(table_of("What needs a second party")) == [title(attack) for attack in BEYOND]


def test_the_vectors_lines_are_one_chain() -> None:
    lines = [line.encode() for line in VECTORS["lines"]]
    walker = ChainWalker(VECTORS["log"], ChainPoint.start(VECTORS["log"]))
    records, leaves = walker.feed(b"".join(line + b"\n" for line in lines))
    assert not walker.breaks
    assert [leaf.hex() for leaf in leaves] == VECTORS["leaves"]
    assert records[0].prev == genesis(VECTORS["log"])
    for seq, record in enumerate(records[1:], 1):
        assert record.blocks_root == blocks_root(bytes([n] * 16) for n in range(seq))


def test_the_vectors_checkpoint_and_cosignature_are_made_byte_for_byte() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]
    for size, root in enumerate(VECTORS["roots"]):
        assert tree_root(leaves[:size]).hex() == root
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["log_seed"]))
    signer = Ed25519Signer(VECTORS["log"], key)
    note = sign_checkpoint(Checkpoint(VECTORS["log"], len(leaves), tree_root(leaves)), signer)
    assert note.decode() == VECTORS["checkpoint"]
    assert signer.key.text() == VECTORS["verifier_key"]
    witness = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["witness_seed"]))
    time = VECTORS["cosignature_time"]
    cosigned = cosign_checkpoint(note, "witness.test/w1", witness, time)
    assert cosigned.decode() == VECTORS["cosigned_checkpoint"]


def test_the_vectors_proofs_are_made_byte_for_byte_and_verify() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]
    key = parse_verifier_key(VECTORS["verifier_key"])
    for index, text in enumerate(VECTORS["proofs"]):
        note = VECTORS["checkpoint"].encode()
        assert (
            LogProof(index, tuple(inclusion_proof(leaves, index)), note).encode() == text.encode()
        )
        line = VECTORS["lines"][index].encode()
        assert check_proof(parse_proof(text.encode()), line, [key]) is not None


def test_the_vectors_log_passes_as_a_whole() -> None:
    data = "".join(line + "\n" for line in VECTORS["lines"]).encode()
    cosigned = VECTORS["cosigned_checkpoint"].encode()
    trust = Trust(
        keys=(parse_verifier_key(VECTORS["verifier_key"]),),
        witnesses=(parse_verifier_key(VECTORS["witness_key"]),),
        remembered=(cosigned,),
        now=1_769_860_810,
        max_age_seconds=60,
    )
    report = verify_log([SegmentSource("vectors", lambda: [data])], trust=trust)
    assert {report.verdict(aspect) for aspect in Aspect} == {Verdict.PASS}
