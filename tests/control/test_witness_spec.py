"""docs/spec/witness.md and the independent vectors say what the code does, byte for byte."""

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.note import (
    COSIGNATURE_V1,
    NoteSignature,
    VerifierKey,
    parse_note,
    parse_verifier_key,
)
from kvrun.control.witness_request import (
    MAX_PROOF,
    MAX_REQUEST_BYTES,
    PATH,
    SIZE_TYPE,
    AddCheckpoint,
    parse_request,
)
from kvrun.control.witness_server import Cosigner
from kvrun.control.witness_state import Remembered
from support.merkle_proofs import consistency_proof

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spec/witness.md").read_text()
VECTORS = json.loads((ROOT / "tests/vectors/witness.json").read_text())


class MemoryState:
    """A witness's memory for one run, with the vectors' key."""

    def __init__(self) -> None:
        seed = bytes.fromhex(VECTORS["witness_seed"])
        self.private_key = Ed25519PrivateKey.from_private_bytes(seed)
        public = self.private_key.public_key().public_bytes_raw()
        self.key = VerifierKey("witness.test/w1", COSIGNATURE_V1, public)
        self.known: Remembered | None = None

    def remembered(self, origin: str) -> Remembered | None:
        return self.known

    def remember(self, origin: str, old: Remembered | None, new: Remembered) -> bool:
        self.known = new
        return True


def test_the_vectors_are_answered_byte_for_byte() -> None:
    state = MemoryState()
    assert state.key.text() == VECTORS["witness_key"]
    keys = [parse_verifier_key(VECTORS["log_key"])]
    cosigner = Cosigner(state, keys, now=lambda: VECTORS["time"])  # type: ignore[arg-type]
    for exchange in VECTORS["exchanges"]:
        reply = cosigner.add_checkpoint(exchange["request"].encode())
        assert (reply.status, reply.body) == (200, exchange["answer"].encode())


def test_the_vectors_requests_are_made_byte_for_byte() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]
    for exchange in VECTORS["exchanges"]:
        note = exchange["request"].encode().partition(b"\n\n")[2]
        proof = tuple(consistency_proof(leaves[: exchange["size"]], exchange["old"]))
        made = AddCheckpoint(exchange["old"], proof, note).encode()
        assert made == exchange["request"].encode()


def test_the_published_request_is_read_and_written_byte_for_byte() -> None:
    data = VECTORS["published_request"].encode()
    request = parse_request(data)
    assert request.encode() == data
    assert (request.old_size, len(request.proof)) == (20852014, 4)
    note = parse_note(request.note)
    assert [item.key_id.hex() for item in note.signatures] == ["033de0ae", "a292ea05"]


def test_the_published_cosignature_is_read_and_written_byte_for_byte() -> None:
    line = VECTORS["published_cosignature"].encode()
    [item] = parse_note(b"text\n\n" + line).signatures
    assert item.line() == line
    assert len(item.signature) == 72
    assert int.from_bytes(item.signature[:8], "big") == 1679315147
    assert isinstance(item, NoteSignature)


@pytest.mark.parametrize(
    "fact", [PATH, SIZE_TYPE, str(MAX_PROOF), f"{MAX_REQUEST_BYTES // 1024} KiB"]
)
def test_the_page_states_the_protocols_constants(fact: str) -> None:
    assert fact in PAGE


@pytest.mark.parametrize("status", [200, 400, 403, 404, 409, 422])
def test_the_page_describes_every_status(status: int) -> None:
    assert re.search(rf"^\| {status} \|", PAGE, re.MULTILINE)


def test_the_example_of_the_page_is_the_vectors() -> None:
    [example] = re.findall(r"```text\n(old 3\n.*?)```", PAGE, re.DOTALL)
    assert example in [item["request"] for item in VECTORS["exchanges"]]
