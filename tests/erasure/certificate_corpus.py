"""Certificates, good and bad in every named way, for all verifiers to agree on."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec
from certificate_world import (
    ISSUED,
    NOW,
    REQUESTED,
    Issued,
    Operator,
    opening,
    parent,
    private_key,
    reseal,
    sign_payload,
    signing_key,
    statement,
)

from kvrun.audit.note import Note, NoteSignature, parse_note
from kvrun.audit.proof import LogProof, parse_proof
from kvrun.audit.record import format_time
from kvrun.erasure.certificate import (
    GpuEntry,
    Outcome,
    SnapshotRetention,
    StepEntry,
    VerificationEntry,
    complete_after,
    encode_statement,
)
from kvrun.erasure.check import check_certificate
from kvrun.erasure.document import make_certificate
from kvrun.erasure.dsse import key_id
from kvrun.erasure.logproof import make_log_proof
from kvrun.erasure.report import CertificateReport
from kvrun.erasure.trust import make_anchor, parse_anchor
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.signing import KeyPurpose, SigningKey


@dataclass(frozen=True)
class Case:
    """A certificate, what a verifier brings, and the answer that decides."""

    name: str
    data: bytes
    expected: str
    anchor: bytes | None
    now: float = NOW
    opening: bytes | None = None
    subject: str | None = None
    log_proof: bytes | None = None

    def check(self) -> CertificateReport:
        return check_certificate(
            self.data,
            anchor=None if self.anchor is None else parse_anchor(self.anchor),
            now=self.now,
            opening=self.opening,
            subject=self.subject,
            log_proof=self.log_proof,
        )


GOOD = Operator().issue()
_ANCHOR = msgspec.json.encode(GOOD.anchor)
_OPERATOR = Operator()
_MINE, _OTHER = _OPERATOR.include(GOOD.signed.digest), _OPERATOR.include("ab" * 32)
_REPLACE = msgspec.structs.replace


def _anchor(**changes: object) -> bytes:
    return msgspec.json.encode(Operator(signer=signing_key(1, **changes)).anchor())


def _with_log(inclusion: object) -> bytes:
    return make_certificate(GOOD.signed, inclusion)  # type: ignore[arg-type]


def _changed(issued: Issued = GOOD, **parts: object) -> bytes:
    return reseal({**json.loads(issued.data), **parts})


def _payload(old: bytes, new: bytes) -> bytes:
    payload = encode_statement(statement()).replace(old, new)
    assert payload != encode_statement(statement())
    return sign_payload(Operator(), payload).data


def _forged_statement() -> bytes:
    document = json.loads(GOOD.data)
    payload = base64.b64decode(document["envelope"]["payload"])
    forged = base64.b64encode(payload.replace(b"DSAR-123", b"DSAR-124")).decode()
    return _changed(envelope={**document["envelope"], "payload": forged})


def _forged_cosignature() -> bytes:
    log = json.loads(GOOD.data)["log"]
    line = log["proof"].splitlines()[-1].split()[-1]
    raw = bytearray(base64.b64decode(line))
    raw[-1] ^= 1
    proof = log["proof"].replace(line, base64.b64encode(raw).decode())
    return _changed(log={**log, "proof": proof})


def _revoked_log(after: int, *, successor: bool = False, seed: int = 2) -> bytes:
    """An anchor in which a log's key is revoked so many seconds after the certificate."""
    private = private_key(seed)
    public = private.public_key().public_bytes_raw()
    old = SigningKey(
        key_id=key_id(public),
        purpose=KeyPurpose.CHECKPOINT,
        serial=2,
        created_at=int(REQUESTED) - 1000,
        valid_until=None,
        revoked_at=int(ISSUED) + after,
        private_key=private,
    )
    keys = [_OPERATOR.signer.public(), old.public()]
    logs = [Operator(log_seed=6).log_signer.key] if successor else []
    return make_anchor(keys, logs, [_OPERATOR.witness_key])


def _signed_by_another_log() -> tuple[bytes, str, bytes]:
    """The anchor knows both logs; the other one's key signs a checkpoint in this one's name."""
    other = Operator(log_id="kvrun.test/b", log_seed=5).log_signer
    proof = parse_proof(_MINE.proof.encode())
    text = parse_note(proof.checkpoint).text
    line = NoteSignature(other.key.name, other.key.key_id, other.sign(text))
    forged = LogProof(proof.index, proof.path, Note(text, (line,)).encode()).encode().decode()
    logs = [_OPERATOR.log_signer.key, other.key]
    anchor = make_anchor([_OPERATOR.signer.public()], logs)
    return _with_log(_REPLACE(_MINE, proof=forged)), "log_not_signed", anchor


def _issue(**changes: object) -> bytes:
    return Operator().issue(statement(**changes)).data


def control_anchor() -> bytes:
    """An anchor that names the control plane's log besides the certificate's own."""
    logs = [_OPERATOR.log_signer.key, CONTROL.log_signer.key]
    return make_anchor([_OPERATOR.signer.public()], logs, [_OPERATOR.witness_key])


def _control(
    expected: str, log_proof: bytes, anchor: bytes | None = None, *, anchored: bool = True
) -> Case:
    """The good certificate with a file that is to show it in the control plane's log."""
    anchor = anchor or control_anchor()
    name = f"control log: {expected}"
    return Case(name, GOOD.data, expected, anchor if anchored else None, log_proof=log_proof)


CONTROL = Operator(log_id="acme/control/host", log_seed=7, cosigned_at=None)
_PROVEN = CONTROL.include(GOOD.signed.digest, at=2, size=5)
_ABOUT_ANOTHER = CONTROL.include("ab" * 32, at=2, size=5)
_REVOKED = _revoked_log(60, seed=7)


def _named(log_id: str) -> Case:
    """The proof of another log than the control plane's, which the anchor names as well."""
    other = Operator(log_id=log_id, log_seed=8, cosigned_at=None)
    proof = make_log_proof(other.include(GOOD.signed.digest))
    logs = [_OPERATOR.log_signer.key, other.log_signer.key]
    return _control("foreign_log", proof, make_anchor([_OPERATOR.signer.public()], logs))


def _within(expected: str, log_id: str) -> Case:
    """A certificate of a workspace whose name has a slash, with the proof of such a log."""
    scope = _REPLACE(statement().scope, workspace="acme/control")
    issued = Operator().issue(statement(scope=scope))
    other = Operator(log_id=log_id, log_seed=7, cosigned_at=None)
    logs = [_OPERATOR.log_signer.key, other.log_signer.key]
    anchor = make_anchor([_OPERATOR.signer.public()], logs)
    proof = make_log_proof(other.include(issued.signed.digest))
    return Case(f"{log_id}: {expected}", issued.data, expected, anchor, log_proof=proof)


FOREIGN_LOGS = (
    "acme/support/host",
    "acme/support/host/erasures",
    "acme/control",
    "acme/control/",
    "acme/control/host/erasures",
    "acme/x/control/host",
    "control/host",
    "control",
)

CONTROL_CASES = [
    _control("included", make_log_proof(_PROVEN)),
    _control("log_self_asserted", make_log_proof(_PROVEN), anchored=False),
    _control("not_in_log", make_log_proof(_ABOUT_ANOTHER)),
    _control("log_not_signed", make_log_proof(_PROVEN), _ANCHOR),
    _control("wrong_log_root", make_log_proof(_REPLACE(_PROVEN, proof=_ABOUT_ANOTHER.proof))),
    _control("foreign_log", make_log_proof(_REPLACE(_PROVEN, key=_MINE.key))),
    _control("malformed", make_log_proof(_PROVEN)[:-1]),
    _control("malformed", make_log_proof(_PROVEN).replace(b"proof/v1", b"proof/v2")),
    _control("malformed", make_log_proof(_REPLACE(_PROVEN, record="{}"))),
    _control("malformed", b"[]\n"),
    _control("revoked_log_key", make_log_proof(_PROVEN), _REVOKED),
    _control("foreign_log", make_log_proof(_MINE)),
    _control("foreign_log", make_log_proof(_MINE), anchored=False),
    *map(_named, FOREIGN_LOGS),
    _within("included", "acme/control/control/host"),
    _within("foreign_log", "acme/control/host"),
    _within("foreign_log", "acme/control/chat/host"),
]

_RETENTION = SnapshotRetention(root=1, machine=30)
_HELD = GpuEntry(evicted=3, scrubbed=2, held=1)

CASES = [
    Case("good", GOOD.data, "opened", _ANCHOR, opening=GOOD.opening, subject="chat-7"),
    Case("without an anchor", GOOD.data, "self_asserted", None),
    Case("flipped byte", GOOD.data.replace(b"eyJ", b"eyK", 1), "changed", _ANCHOR),
    Case("noise", b"\x00\xff", "malformed", _ANCHOR),
    Case("cut off", GOOD.data[:-2], "malformed", _ANCHOR),
    Case("pretty", msgspec.json.format(GOOD.data), "malformed", _ANCHOR),
    Case("newer format", _changed(format="kvrun-certificate/v2"), "unknown_version", _ANCHOR),
    Case(
        "newer statement",
        _payload(b"certificate/v1", b"certificate/v2"),
        "unknown_version",
        _ANCHOR,
    ),
    Case("unknown class", _payload(b'"device"', b'"total"'), "malformed", _ANCHOR),
    Case("record called certificate", _payload(b'"device"', b'"logical"'), "malformed", _ANCHOR),
    Case("statement with a fraction", _payload(b":12,", b":12.0,"), "malformed", _ANCHOR),
    Case("forged statement", _forged_statement(), "bad_signature", _ANCHOR),
    Case("future date", GOOD.data, "from_the_future", _ANCHOR, now=ISSUED - 301),
    Case(
        "steps after issue",
        _issue(steps=[StepEntry(name="refused", at=format_time(ISSUED + 60))]),
        "times_contradict",
        _ANCHOR,
    ),
    Case("wrong signer", Operator(signer=signing_key(9)).issue().data, "wrong_signer", _ANCHOR),
    Case("key not valid yet", GOOD.data, "outside_validity", _anchor(created_at=int(ISSUED) + 1)),
    Case("revoked before", GOOD.data, "revoked_signer", _anchor(revoked_at=int(ISSUED) + 60)),
    Case("revoked later", GOOD.data, "revoked_later", _anchor(revoked_at=int(ISSUED) + 61)),
    Case("not in the log", _with_log(_OTHER), "not_in_log", _ANCHOR),
    Case(
        "another place in the log",
        _with_log(_REPLACE(_MINE, proof=_MINE.proof.replace("index 4", "index 5"))),
        "not_in_log",
        _ANCHOR,
    ),
    Case("wrong root", _with_log(_REPLACE(_MINE, proof=_OTHER.proof)), "wrong_log_root", _ANCHOR),
    Case("foreign log", Operator(log_id="kvrun.test/b").issue().data, "foreign_log", _ANCHOR),
    Case("unsigned log", Operator(log_seed=9).issue().data, "log_not_signed", _ANCHOR),
    Case("log key revoked before", GOOD.data, "revoked_log_key", _revoked_log(60)),
    Case("log key revoked later", GOOD.data, "included", _revoked_log(61)),
    Case("log key replaced", GOOD.data, "revoked_log_key", _revoked_log(60, successor=True)),
    Case("another log speaks for it", *_signed_by_another_log()),
    Case("forged cosignature", _forged_cosignature(), "bad_cosignature", _ANCHOR),
    Case("no witness", Operator(cosigned_at=None).issue().data, "no_witness", _ANCHOR),
    Case("wrong salt", GOOD.data, "bad_opening", _ANCHOR, opening=opening(salt=1)),
    Case("malformed opening", GOOD.data, "bad_opening", _ANCHOR, opening=b"{}"),
    Case("opening with newline", GOOD.data, "bad_opening", _ANCHOR, opening=opening() + b"\n"),
    Case("subject without opening", GOOD.data, "bad_opening", _ANCHOR, subject="chat-7"),
    Case("other subject", GOOD.data, "other_subject", _ANCHOR, opening=opening(), subject="chat-8"),
    Case("logical", _issue(claim_class=ClaimClass.LOGICAL), "logical_only", _ANCHOR),
    Case(
        "snapshots",
        _issue(
            snapshot_retention_days=_RETENTION, complete_after=complete_after(REQUESTED, _RETENTION)
        ),
        "not_yet_complete",
        _ANCHOR,
    ),
    Case("unacknowledged", _issue(unacknowledged=["i-2"]), "unacknowledged", _ANCHOR),
    Case("pages held", _issue(gpu=_HELD), "pages_held", _ANCHOR),
    Case(
        "nothing held but pages",
        _issue(keys=[], root=None, claim_class=None, gpu=_HELD),
        "pages_held",
        _ANCHOR,
    ),
    Case(
        "logical and pages held",
        _issue(claim_class=ClaimClass.LOGICAL, gpu=_HELD),
        "logical_only",
        _ANCHOR,
    ),
    Case(
        "failed canary",
        _issue(verification=[VerificationEntry(name="canary", outcome=Outcome.FAIL)]),
        "verification_failed",
        _ANCHOR,
    ),
    Case("no keys", _issue(keys=[]), "claim_contradicts", _ANCHOR),
    Case("nothing held", _issue(keys=[], root=None, claim_class=None), "nothing_held", _ANCHOR),
    Case("parent", Operator().issue(parent()).data, "lists_children", _ANCHOR),
    *CONTROL_CASES,
]


def misshapen(*, every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Signed, logged certificates in which one value of the statement is another one.

    ``every``: only each so many of them.
    """
    operator = Operator()
    whole = json.loads(encode_statement(statement(unacknowledged=["i-2"])))
    for place, value in list(product(_places(whole), _VALUES))[::every]:
        changed = json.loads(json.dumps(whole))
        parent, name = changed, place[-1]
        for step in place[:-1]:
            parent = parent[step]
        parent[name] = value
        text = json.dumps(changed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        try:
            payload = text.encode()
        except UnicodeEncodeError:
            payload = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
        where = ".".join(map(str, place))
        yield f"{where}={value!r}", sign_payload(operator, payload).data


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    names = range(len(value)) if isinstance(value, list) else value
    for name in names if isinstance(value, dict | list) else ():
        yield from _places(value[name], (*place, name))


_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    7,
    1.5,
    2**53,
    10**30,
    "",
    "é",
    "\x7f",
    "\n",
    "\ud800",
    "2026-02-30T12:00:00.000000Z",
    "0" * 64,
    [],
    [""],
    {},
    {"": 1},
)
