"""Container, manifest and draw are those of the independent script, byte for byte."""

from __future__ import annotations

import base64
import io
import json
import zlib
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.erasure.certificate import Digest, Software
from kvrun.erasure.dsse import key_id
from kvrun.evidence.export import pack
from kvrun.evidence.manifest import (
    BundleStatement,
    FileSubject,
    Size,
    StatedPeriod,
    StatedSample,
    StatedScope,
    parse_manifest,
    sign_manifest,
)
from kvrun.evidence.period import parse_period
from kvrun.evidence.sample import Drawn, Frame, draw
from kvrun.evidence.staging import StagedFile
from kvrun.keys.signing import KeyPurpose, SigningKey

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/evidence-bundle.json").read_text())
FILES = {name: base64.b64decode(data) for name, data in VECTORS["files"].items()}


def signer() -> SigningKey:
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"]))
    name = key_id(private.public_key().public_bytes_raw())
    return SigningKey(name, KeyPurpose.EVIDENCE, 1, 0, None, None, private)


def test_the_manifest_is_the_vectors() -> None:
    statement = BundleStatement(
        full=False,
        period=StatedPeriod(first="2026-01-01", end="2026-02-01"),
        sample=StatedSample(records=25, seed="7"),
        scope=StatedScope(deployments=["d-1"], workspace="acme"),
        software=Software(version="0.1.0"),
    )
    subjects = [
        FileSubject(
            annotations=Size(size_bytes=len(data)),
            digest=Digest(sha256=sha256(data).hexdigest()),
            name=name,
        )
        for name, data in FILES.items()
    ]
    made = sign_manifest(statement, subjects, signer())
    assert made.decode() == VECTORS["manifest"]
    read = parse_manifest(made)
    assert read.signed
    assert read.statement == statement
    assert [item.name for item in read.files] == sorted(FILES)


def test_the_archive_is_the_vectors() -> None:
    contents = {**FILES, "manifest.json": VECTORS["manifest"].encode()}
    staged = [
        StagedFile(name, len(data), sha256(data).hexdigest(), zlib.crc32(data))
        for name, data in sorted(contents.items())
    ]
    file = io.BytesIO()
    period = parse_period("2026-01-01", "2026-02-01")
    pack(file, staged, lambda name: iter([contents[name]]), period)
    assert file.getvalue() == base64.b64decode(VECTORS["bundle"])


def test_the_draw_is_the_vectors() -> None:
    for case in VECTORS["draws"]:
        frames = [Frame(*frame) for frame in case["frames"]]
        expected = [Drawn(*item) for item in case["drawn"]]
        assert draw(frames, case["records"], case["seed"]) == expected
