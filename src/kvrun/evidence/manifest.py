"""The bundle's manifest: a signed statement of every file in it. Pure.

An in-toto Statement v1 whose subjects are the files, in a DSSE envelope, as certificates are.
``docs/spec/evidence-bundle.md`` specifies it. Nothing in the file is outside the signature but the
public key that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import decode_base64
from kvrun.erasure import dsse
from kvrun.erasure.certificate import STATEMENT_TYPE, Count, Digest, Software
from kvrun.evidence.container import check_name
from kvrun.evidence.errors import BundleFormatError
from kvrun.keys.signing import KeyPurpose, SigningKey
from kvrun.statements.document import Document, seal_payload

FORMAT = "kvrun-evidence/v1"
PREDICATE_TYPE = "https://kvrun.dev/evidence-bundle/v1"
MANIFEST_NAME = "manifest.json"
SUMMARY_NAME, CONTROLS_NAME, PAGE_NAME = "summary.json", "controls.json", "index.html"
CONFIGURATION_NAME, ANCHOR_NAME = "configuration.json", "keys/trust-anchor.json"
MAX_MANIFEST_BYTES = 256 << 20
MAX_SAMPLE = 100_000
MAX_SEED = 100


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Size(_Part, frozen=True, kw_only=True):
    """What is said of a file besides its digest."""

    size_bytes: Count


class FileSubject(_Part, frozen=True, kw_only=True):
    """A file of the bundle: an in-toto resource descriptor."""

    annotations: Size
    digest: Digest
    name: str


class StatedPeriod(_Part, frozen=True, kw_only=True):
    """Days in UTC, half-open."""

    first: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")


class StatedScope(_Part, frozen=True, kw_only=True):
    """What the bundle is about: names and ids of a workspace and its deployments."""

    deployments: list[str]
    workspace: str


class StatedSample(_Part, frozen=True, kw_only=True):
    """How many records were drawn, with which seed."""

    records: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLE)]
    seed: Annotated[str, msgspec.Meta(max_length=MAX_SEED)]


class BundleStatement(_Part, frozen=True, kw_only=True):
    """What the bundle is. ``full``: whether the segments themselves are in it."""

    full: bool
    period: StatedPeriod
    sample: StatedSample
    scope: StatedScope
    software: Software


class ManifestStatement(_Part, frozen=True, kw_only=True):
    """The in-toto statement."""

    type: str = msgspec.field(name="_type")
    predicate: BundleStatement
    predicate_type: str = msgspec.field(name="predicateType")
    subject: list[FileSubject]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as it was read: what it states, and by whose key it is signed, if it is."""

    statement: BundleStatement
    files: list[FileSubject]
    public_key: bytes
    signed: bool

    @property
    def key_id(self) -> str:
        """The signer's."""
        return dsse.key_id(self.public_key)


def sign_manifest(
    statement: BundleStatement, files: Sequence[FileSubject], signer: SigningKey
) -> bytes:
    """The manifest's bytes. The same input gives the same bytes.

    Raises BundleFormatError for a key of another purpose.
    """
    if signer.purpose is not KeyPurpose.EVIDENCE:
        raise BundleFormatError(
            f"the signing key {signer.key_id} is for {signer.purpose.value}s, not evidence"
        )
    payload = _ENCODER.encode(
        ManifestStatement(
            type=STATEMENT_TYPE,
            predicate=statement,
            predicate_type=PREDICATE_TYPE,
            subject=sorted(files, key=lambda item: item.name),
        )
    )
    return seal_payload(FORMAT, payload, signer)


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in its file's bytes. Raises BundleFormatError for what is none."""
    try:
        if _FORMAT.decode(data).format != FORMAT:
            raise BundleFormatError(
                f"this version does not know the bundle's format, only {FORMAT}",
                name=MANIFEST_NAME,
            )
        document = _DOCUMENT.decode(data)
        if _ENCODER.encode(document) + b"\n" != data or len(document.envelope.signatures) != 1:
            raise ValueError("it is not canonical JSON with one signature")
        payload = decode_base64(document.envelope.payload)
        public_key = decode_base64(document.public_key)
        signature = decode_base64(document.envelope.signatures[0].sig)
        statement = _STATEMENT.decode(payload)
        if _ENCODER.encode(statement) != payload:
            raise ValueError("its statement is not canonical JSON")
        names = [check_name(item.name) for item in statement.subject]
        if names != sorted(set(names)) or MANIFEST_NAME in names:
            raise ValueError("its files are not in order")
        if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise ValueError("its statement is of another type")
    except (msgspec.MsgspecError, UnicodeError, ValueError, NoteFormatError) as error:
        said = error.message if isinstance(error, NoteFormatError) else str(error)
        raise BundleFormatError(
            f"{MANIFEST_NAME} is malformed: {said}", name=MANIFEST_NAME
        ) from None
    envelope = document.envelope
    signed = (
        envelope.payload_type == dsse.PAYLOAD_TYPE
        and envelope.signatures[0].keyid == dsse.key_id(public_key)
        and dsse.is_signed_by(public_key, envelope.payload_type, payload, signature)
    )
    return Manifest(
        statement=statement.predicate, files=statement.subject, public_key=public_key, signed=signed
    )


class _Format(msgspec.Struct):
    format: str


_ENCODER = msgspec.json.Encoder(order="sorted")
_DOCUMENT = msgspec.json.Decoder(Document)
_STATEMENT = msgspec.json.Decoder(ManifestStatement)
_FORMAT = msgspec.json.Decoder(_Format)
