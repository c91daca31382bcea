"""Statements are what docs/spec/audit-log.md says, byte for byte, by an independent script."""

import json
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import parse_verifier_key
from kvrun.audit.statement import (
    RETIREMENT,
    TOMBSTONE,
    Tombstone,
    open_statement,
    open_tombstone,
    sign_statement,
)
from kvrun.control.retire import Retirement

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors/collector-statement.json").read_text(encoding="utf-8")
)
KEY = parse_verifier_key(VECTORS["verifier_key"])


@pytest.mark.parametrize(
    ("kind", "name", "model"),
    [(TOMBSTONE, "tombstone", Tombstone), (RETIREMENT, "retirement", Retirement)],
)
def test_a_statement_is_made_and_read_byte_for_byte(
    kind: str, name: str, model: type[msgspec.Struct]
) -> None:
    statement = msgspec.convert(VECTORS[f"{name}_json"], model)
    made = sign_statement(
        kind,
        VECTORS["log"],
        msgspec.json.encode(statement, order="sorted"),
        VECTORS["name"],
        Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"])),
        VECTORS["time"],
    )
    assert made.decode() == VECTORS[name]
    opened = open_statement(made, kind, (KEY,))
    assert (opened.log, opened.signed_by) == (VECTORS["log"], ((KEY.name, VECTORS["time"]),))
    assert msgspec.json.decode(opened.body, type=model) == statement


@pytest.mark.parametrize(
    "change",
    [
        lambda note: note.replace(b'"size":13', b'"size":14'),
        lambda note: note.replace(b"w-1/d-1/host-7", b"w-1/d-1/host-8"),
        lambda note: note.replace(b"tombstone/v1", b"tombstone/v2"),
        lambda note: note.replace(b"}\n\n", b"}\nmore\n\n"),
    ],
)
def test_a_changed_tombstone_is_refused(change: object) -> None:
    note = VECTORS["tombstone"].encode()
    assert callable(change)
    assert change(note) != note
    with pytest.raises(NoteFormatError):
        open_tombstone(change(note), (KEY,))


def test_a_tombstone_whose_tree_is_none_is_refused() -> None:
    body = VECTORS["tombstone_json"] | {"after": VECTORS["tombstone_json"]["after"] | {"size": 12}}
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"]))
    note = sign_statement(
        TOMBSTONE, VECTORS["log"], json.dumps(body).encode(), VECTORS["name"], private, 1
    )
    with pytest.raises(NoteFormatError, match="frontier"):
        open_tombstone(note, (KEY,))
