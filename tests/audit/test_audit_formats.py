"""Signed notes, checkpoints and proofs are the C2SP formats, byte for byte."""

import base64
import contextlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from kvrun.audit.checkpoint import (
    Checkpoint,
    Ed25519Signer,
    cosign_checkpoint,
    open_checkpoint,
    parse_checkpoint,
    sign_checkpoint,
)
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import inclusion_proof, leaf_hashes, tree_root
from kvrun.audit.note import (
    COSIGNATURE_V1,
    ED25519,
    Note,
    NoteSignature,
    VerifierKey,
    cosigned_message,
    parse_note,
    parse_verifier_key,
)
from kvrun.audit.proof import LogProof, check_proof, parse_proof

# The example of Go's sumdb/note package and the head of the public Go checksum database that the
# C2SP checkpoint page shows, under that database's own origin and key.
NEUMANN_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_TEXT = (
    b"If you think cryptography is the answer to your problem,\n"
    b"then you don't know what your problem is.\n"
)
NEUMANN_NOTE = (
    NEUMANN_TEXT
    + "\n\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqd"
    "ngotpRZb6KE6RyyBwJnAM=\n".encode()
)
SUMDB_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
SUMDB_NOTE = (
    "go.sum database tree\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "\u2014 sum.golang.org Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzG"
    "ku9nTo+zyWE+xeMcTOAYQ8=\n"
).encode()
# The checkpoint with a cosignature, and the message that it signs, of the C2SP cosignature page.
COSIGNED_TEXT = (
    b"example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
)
COSIGNED_NOTE = (
    COSIGNED_TEXT
    + "\n\u2014 example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4"
    "URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "\u2014 witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJ"
    "sX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n".encode()
)
# The head of the example of the C2SP proof page; its checkpoint is abbreviated there.
PROOF_HEAD = b"""c2sp.org/tlog-proof@v1
index 73894
gSKyXoYZUgZ6jduWYrkDOARinOMGJveXjgMkBTcdPlQ=
B95lDa8R83lS8n0eG+o0buTxRKQTYFi//1U8anccXmA=
EKNzoDWG8LGC0Yp9o+sv3qllpMP9uHQ9B20KNL+Q1zs=
RoopEkOdqkYqMB4MJXrbt/hMjOxsVn0IrWjpz1ZMMes=
AHCioX9nLjsrse6YhjRRmk1WUEirVOLLRoOQ6vfO5vk=

"""
SEED = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = Ed25519Signer("log.test/one", SEED)
LEAVES = leaf_hashes([b"a", b"b", b"c", b"d", b"e"])
CHECKPOINT = Checkpoint("log.test/one", 5, tree_root(LEAVES))
WITNESS = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
WITNESS_KEY = VerifierKey("witness.test", COSIGNATURE_V1, WITNESS.public_key().public_bytes_raw())


def test_the_published_note_verifies_and_is_reproduced_byte_for_byte() -> None:
    key = parse_verifier_key(NEUMANN_KEY)
    note = parse_note(NEUMANN_NOTE)
    assert note.text == NEUMANN_TEXT
    assert note.encode() == NEUMANN_NOTE
    assert key.text() == NEUMANN_KEY
    assert key.made(note.signatures[0])
    assert key.verifies(note.text, note.signatures[0].signature)
    assert not key.verifies(note.text + b"x\n", note.signatures[0].signature)


def test_the_go_checksum_databases_head_verifies() -> None:
    key = parse_verifier_key(SUMDB_KEY)
    opened = open_checkpoint(SUMDB_NOTE, [key])
    assert opened.signed_by == (key,)
    assert opened.checkpoint.size == 20852163
    assert opened.checkpoint.text() + b"\n" == SUMDB_NOTE[: SUMDB_NOTE.index("\u2014".encode())]


def test_the_published_cosignature_is_read_and_reproduced_byte_for_byte() -> None:
    note = parse_note(COSIGNED_NOTE)
    assert note.encode() == COSIGNED_NOTE
    assert parse_checkpoint(note.text).text() == COSIGNED_TEXT
    log, witness = note.signatures
    assert (log.name, witness.name) == ("example.com/behind-the-sofa", "witness.example.com/w1")
    assert len(witness.signature) == 8 + 64
    time = int.from_bytes(witness.signature[:8], "big")
    assert cosigned_message(note.text, time) == b"cosignature/v1\ntime 1679315147\n" + COSIGNED_TEXT


def test_the_published_proof_is_read_and_reproduced_byte_for_byte() -> None:
    proof = parse_proof(PROOF_HEAD + SUMDB_NOTE)
    assert (proof.index, len(proof.path), proof.checkpoint) == (73894, 5, SUMDB_NOTE)
    assert proof.encode() == PROOF_HEAD + SUMDB_NOTE


def test_a_checkpoint_has_exactly_this_form() -> None:
    signature = base64.b64encode(SIGNER.key.key_id + SEED.sign(CHECKPOINT.text())).decode()
    root = base64.b64encode(tree_root(LEAVES)).decode()
    expected = f"log.test/one\n5\n{root}\n\n\u2014 log.test/one {signature}\n"
    assert sign_checkpoint(CHECKPOINT, SIGNER) == expected.encode()


def test_signatures_of_strangers_are_ignored_and_broken_ones_named() -> None:
    note = sign_checkpoint(CHECKPOINT, SIGNER)
    stranger = Ed25519Signer("log.test/one", WITNESS).key
    assert open_checkpoint(note, [stranger]).signed_by == ()
    assert open_checkpoint(note, [stranger]).broken == ()
    changed = note.replace(b"\n5\n", b"\n6\n")
    opened = open_checkpoint(changed, [SIGNER.key])
    assert opened.signed_by == ()
    assert opened.broken == ("log.test/one",)


def test_a_cosignature_signs_the_time_and_the_whole_text() -> None:
    note = cosign_checkpoint(
        sign_checkpoint(CHECKPOINT, SIGNER), "witness.test", WITNESS, 1679315147
    )
    opened = open_checkpoint(note, [SIGNER.key], [WITNESS_KEY])
    assert [(item.name, item.time) for item in opened.cosigned_by] == [("witness.test", 1679315147)]
    raw = parse_note(note).signatures[1].signature
    message = b"cosignature/v1\ntime 1679315147\n" + CHECKPOINT.text()
    WITNESS.public_key().verify(raw[8:], message)
    later = (1679315148).to_bytes(8, "big") + raw[8:]
    assert not WITNESS_KEY.verifies(CHECKPOINT.text(), later)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text\n",
        b"text\n\n",
        b"text\n\nno dash AAAAAAA=\n",
        "text\n\n\u20ac\u20ac\u20ac AAAAAAA=\n".encode(),
        "text\n\n\u2014 name AAAAAAA=".encode(),
        "text\n\n\u2014 na+me AAAAAAA=\n".encode(),
        "text\n\n\u2014 name AAAA\n".encode(),
        "text\n\n\u2014 name AAAAAAB=\n".encode(),
        "text\n\n\u2014 name  AAAAAAA=\n".encode(),
        "te\txt\n\n\u2014 name AAAAAAA=\n".encode(),
        b"\xff\n\n\xe2\x80\x94 name AAAAAAA=\n",
        ("text\n\n" + "\u2014 name AAAAAAA=\n" * 65).encode(),
    ],
)
def test_a_malformed_note_is_refused(data: bytes) -> None:
    with pytest.raises(NoteFormatError):
        parse_note(data)


@pytest.mark.parametrize(
    "change",
    [
        ("5", "05"),
        ("5", "-5"),
        ("5", "5 "),
        ("5", "\u0665"),
        ("5", "99999999999999999"),
        ("5", ""),
        ("log.test/one", ""),
        ("=", ""),
    ],
)
def test_a_malformed_checkpoint_is_refused(change: tuple[str, str]) -> None:
    root = base64.b64encode(bytes(32)).decode()
    text = f"log.test/one\n5\n{root}\n".replace(*change, 1)
    with pytest.raises(NoteFormatError):
        parse_checkpoint(text.encode())


def test_an_empty_log_and_extension_lines_are_read() -> None:
    checkpoint = Checkpoint("log.test/one", 0, bytes(32), ("more",))
    assert parse_checkpoint(checkpoint.text()) == checkpoint


@pytest.mark.parametrize("key", ["", "a+b", "a+00000000+AA==", NEUMANN_KEY.replace("c7", "c8")])
def test_a_malformed_verifier_key_is_refused(key: str) -> None:
    with pytest.raises(NoteFormatError):
        parse_verifier_key(key)


names = st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="+"), min_size=1)


@given(
    st.text("ab\n \u00e9", min_size=1),
    st.lists(st.tuples(names, st.binary(min_size=5)), min_size=1),
)
def test_any_note_comes_back_from_its_bytes(text: str, signatures: list[tuple[str, bytes]]) -> None:
    items = tuple(NoteSignature(name, raw[:4], raw[4:]) for name, raw in signatures)
    note = Note(text.encode() + b"\n", items)
    assert parse_note(note.encode()) == note


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_cleanly(data: bytes) -> None:
    for parse in (parse_note, parse_proof):
        with pytest.raises(NoteFormatError):
            parse(data)


@given(st.text(), st.text("\u2014\u20ac\u00e9 aA=\n", max_size=40))
def test_arbitrary_text_is_read_or_refused_cleanly(text: str, signatures: str) -> None:
    with contextlib.suppress(NoteFormatError):
        parse_note(f"{text}\n\n{signatures}\n".encode())


def test_a_proof_shows_one_record_offline_and_no_other() -> None:
    note = sign_checkpoint(CHECKPOINT, SIGNER)
    proof = LogProof(3, tuple(inclusion_proof(LEAVES, 3)), note, b"extra")
    path = "".join(base64.b64encode(item).decode() + "\n" for item in proof.path)
    expected = f"c2sp.org/tlog-proof@v1\nextra ZXh0cmE=\nindex 3\n{path}\n".encode() + note
    assert proof.encode() == expected
    assert parse_proof(expected) == proof
    assert check_proof(proof, b"d", [SIGNER.key]) is not None
    assert check_proof(proof, b"c", [SIGNER.key]) is None
    assert check_proof(proof, b"d", [Ed25519Signer("log.test/one", WITNESS).key]) is None
    assert check_proof(LogProof(2, proof.path, note), b"d", [SIGNER.key]) is None


def test_a_proof_of_a_tree_of_one_has_no_path_lines() -> None:
    leaves = leaf_hashes([b"only"])
    note = sign_checkpoint(Checkpoint("log.test/one", 1, tree_root(leaves)), SIGNER)
    proof = LogProof(0, (), note)
    assert proof.encode() == b"c2sp.org/tlog-proof@v1\nindex 0\n\n" + note
    assert check_proof(parse_proof(proof.encode()), b"only", [SIGNER.key]) is not None


@pytest.mark.parametrize(
    "change", [(b"index 3", b"index 03"), (b"@v1", b"@v2"), (b"index", b"idx")]
)
def test_a_malformed_proof_is_refused(change: tuple[bytes, bytes]) -> None:
    proof = LogProof(3, tuple(inclusion_proof(LEAVES, 3)), sign_checkpoint(CHECKPOINT, SIGNER))
    with pytest.raises(NoteFormatError):
        parse_proof(proof.encode().replace(*change, 1))


def test_the_two_key_types_have_different_ids() -> None:
    public = WITNESS.public_key().public_bytes_raw()
    assert (
        VerifierKey("w", ED25519, public).key_id != VerifierKey("w", COSIGNATURE_V1, public).key_id
    )
