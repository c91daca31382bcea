#!/usr/bin/env python3
"""Check kvrun's erasure certificates and audit logs. One file, for auditors to read and keep.

Needs Python 3.9 or newer and the package ``cryptography`` (for Ed25519). No network, nothing of
kvrun. Formats: docs/spec/erasure-certificate.md and docs/spec/audit-log.md in kvrun's sources.

    python3 kvrun_verify.py certificate.json --trust anchor.json
    python3 kvrun_verify.py certificate.json --trust anchor.json --opening o.json --subject chat-7
    python3 kvrun_verify.py segment-*.jsonl --trust anchor.json --checkpoint kept-checkpoint

Exit status: 0 nothing failed under a key that you gave, 1 something failed, 2 nothing failed but
the signing key came from the file itself, so anyone could have made it.
"""

from __future__ import annotations

import argparse
import base64
import calendar
import hashlib
import json
import re
import sys
import time
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
FUTURE_S, CLOCK_S = 300.0, 5.0
MAX_NUMBER = 2**53 - 1


class FormatError(Exception):
    """What was read does not have the format that it should have."""


class UnknownVersionError(FormatError):
    """The format may be right, but for a newer verifier."""


# --- JSON, base64, times ---------------------------------------------------------------------


def canonical(value) -> bytes:
    """RFC 8785, for values without fractions and with ASCII keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def load(data: bytes, what: str):
    """The JSON value in ``data``."""

    def refuse(text):
        raise ValueError(text)

    try:
        value = json.loads(data.decode(), parse_constant=refuse)
        canonical(value)  # refuses text that has no UTF-8 form
        return value
    except (ValueError, RecursionError):
        raise FormatError(f"{what} is not JSON") from None


def fits(value, shape) -> bool:
    """Whether a JSON value has a shape: a type, a set of texts, [shape of items], {field: shape}.

    A tuple lists alternatives. Every field of an object is required, and no other is allowed.
    """
    if isinstance(shape, tuple):
        return any(fits(value, item) for item in shape)
    if isinstance(shape, dict):
        return (
            isinstance(value, dict)
            and set(value) == set(shape)
            and all(fits(value[name], shape[name]) for name in shape)
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, (set, frozenset)):
        return isinstance(value, str) and value in shape
    return (shape is None and value is None) or type(value) is shape


def plain(value) -> bool:
    """Whether all text is free of control characters and all numbers are from 0 to 2^53 - 1."""
    if isinstance(value, dict):
        return all(plain(item) for item in value.values())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    if isinstance(value, str):
        return not any(char < " " or char == "\x7f" for char in value)
    return type(value) is not int or 0 <= value <= MAX_NUMBER


def unbase64(text: str) -> bytes:
    """Standard base64 in its one canonical spelling."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise FormatError(f"not base64: {text[:40]!r}") from None
    if base64.b64encode(raw).decode() != text:
        raise FormatError(f"not canonical base64: {text[:40]!r}")
    return raw


def is_hex(text: str, length: int) -> bool:
    """Whether ``text`` is so many lower-case hexadecimal digits."""
    return len(text) == length and set(text) <= set("0123456789abcdef")


def seconds(text: str) -> float:
    """Seconds since 1970 of a time such as 2026-01-31T12:00:00.000000Z."""
    if len(text) != 27 or text[19] != "." or text[26] != "Z" or not text[20:26].isdigit():
        raise FormatError(f"not a time: {text[:40]!r}")
    try:
        whole = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        raise FormatError(f"not a time: {text[:40]!r}") from None
    return whole + int(text[20:26]) / 1_000_000


def sha256(data: bytes) -> bytes:
    """The hash that is used everywhere here."""
    return hashlib.sha256(data).digest()


# --- Signatures, signed notes and checkpoints (C2SP) -----------------------------------------


def signed_by(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is good."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def verifier_key(text: str) -> dict:
    """A C2SP verifier key, ``name+key id+base64``; type 1 is a log's key, 4 a witness's."""
    parts = text.strip().split("+", 2)
    if len(parts) != 3:
        raise FormatError("a verifier key has the form name+key id+base64")
    name, raw = parts[0], unbase64(parts[2])
    if not name or any(char.isspace() or char < " " for char in name):
        raise FormatError("a verifier key has a name without spaces")
    if len(raw) != 33 or raw[0] not in (1, 4):
        raise FormatError(f"verifier key {name} has an unsupported type")
    key_id = sha256(name.encode() + b"\n" + raw)[:4]
    if key_id.hex() != parts[1]:
        raise FormatError(f"verifier key {name} does not match its key id")
    return {"name": name, "type": raw[0], "raw": raw[1:], "id": key_id, "text": text}


def log_key(name: str, raw: bytes) -> dict:
    """The verifier key of a log from its 32 raw bytes."""
    key_id = sha256(name.encode() + b"\n\x01" + raw)[:4]
    return {"name": name, "type": 1, "raw": raw, "id": key_id}


def read_note(data: bytes):
    """The text of a signed note, and its signatures as (name, key id, signature)."""
    split = data.rfind(b"\n\n")
    if len(data) > 1 << 20 or split < 0 or not data.endswith(b"\n") or split + 2 == len(data):
        raise FormatError("a note is a text, an empty line and signature lines")
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        raise FormatError("a note is UTF-8") from None
    if any(char < " " and char != "\n" for char in decoded):
        raise FormatError("a note has no control characters")
    signatures = []
    for line in data[split + 2 : -1].decode().split("\n"):
        fields = line[2:].split(" ")
        if not line.startswith("\u2014 ") or len(fields) != 2:
            raise FormatError("a signature line has the form: em dash, name, base64")
        name, raw = fields[0], unbase64(fields[1])
        if len(raw) < 5 or not name or "+" in name or any(char.isspace() for char in name):
            raise FormatError("a signature line has a name, a key id and a signature")
        signatures.append((name, raw[:4], raw[4:]))
    if len(signatures) > 64:
        raise FormatError("a note has at most 64 signatures")
    return data[: split + 1], signatures


def open_checkpoint(note: bytes, keys, witnesses=()) -> dict:
    """A checkpoint's origin, size and root, and which of the given keys signed it.

    Signatures of unknown keys are ignored; ``broken`` names known keys whose signature is wrong.
    """
    text, signatures = read_note(note)
    lines = text.decode().split("\n")
    if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
        raise FormatError("a checkpoint has at least three lines, none of them empty")
    if not re.fullmatch(r"0|[1-9][0-9]{0,15}", lines[1]):
        raise FormatError("a checkpoint's second line is its size")
    root = unbase64(lines[2])
    if len(root) != 32:
        raise FormatError("a checkpoint's third line is a root hash")
    opened = {"origin": lines[0], "size": int(lines[1]), "root": root}
    opened.update(signed=[], signed_raw=[], signers=[], cosigned=[], broken=set())
    for name, key_id, signature in signatures:
        for key in [*keys, *witnesses]:
            if (key["name"], key["id"]) != (name, key_id):
                continue
            message, stated = text, 0
            if key["type"] == 4 and len(signature) == 72:
                stated = int.from_bytes(signature[:8], "big")
                message = b"cosignature/v1\ntime %d\n" % stated + text
                signature = signature[8:]
            if not signed_by(key["raw"], message, signature):
                opened["broken"].add(name)
            elif key in keys:
                opened["signed"].append(key_id)
                opened["signed_raw"].append(key["raw"])
                opened["signers"].append(name)
            else:
                opened["cosigned"].append((name, stated))
            break
    return opened


# --- Merkle trees (RFC 6962) -----------------------------------------------------------------


def leaf_hash(data: bytes) -> bytes:
    """The hash of a record's line; also its value in the chain."""
    return sha256(b"\x00" + data)


def includes(leaf: bytes, index: int, size: int, path, root: bytes) -> bool:
    """Whether ``leaf`` is at ``index`` of the tree with this size and root (RFC 9162, 2.1.3.2)."""
    if index >= size:
        return False
    place, last, head = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            head = sha256(b"\x01" + sibling + head)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            head = sha256(b"\x01" + head + sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and head == root


class Tree:
    """The roots of the perfect subtrees of a growing tree, largest first."""

    def __init__(self, size: int = 0, roots=()):
        self.size, self.roots = size, list(roots)

    def append(self, leaf: bytes) -> None:
        """Add one record's leaf hash."""
        bit = 1
        while self.size & bit:
            leaf, bit = sha256(b"\x01" + self.roots.pop() + leaf), bit << 1
        self.roots.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The root hash at this size."""
        if not self.roots:
            return sha256(b"")
        head = self.roots[-1]
        for left in self.roots[-2::-1]:
            head = sha256(b"\x01" + left + head)
        return head


# --- Audit records ---------------------------------------------------------------------------

EVENTS = set(
    "allocated sealed opened reused evicted persisted restored moved denied expired erased"
    " integrity_failure key_created key_leased key_rotated key_destroyed session_opened"
    " session_closed policy_activated policy_rejected deployment_created deployment_started"
    " deployment_stopped deployment_deleted deployment_asked signed_in role_changed log_opened"
    " log_closed"
    " log_collected log_read whois heartbeat gap instance_retired log_alert"
    " alert_acknowledged log_pruned certified".split()
)
REQUIRED = {"epoch": int, "event": EVENTS, "log": str, "outcome": {"ok", "denied", "failed"}}
REQUIRED.update({"prev": str, "seq": int, "ts": str, "v": int})
OPTIONAL = {"blocks": int, "bytes": int, "lost": int, "tokens": int}
OPTIONAL.update(
    (name, str)
    for name in "blocks_root deployment digest key_id policy_revision reason request_id"
    " session_ref tenant_ref tier tier_to workspace".split()
)


def read_record(line: bytes) -> dict:
    """The record in one line without its newline."""
    record = load(line, "the line")
    if not isinstance(record, dict) or len(line) > 2048:
        raise FormatError("the line is not a record")
    shape = {name: OPTIONAL[name] for name in record if name in OPTIONAL}
    if not fits(record, {**REQUIRED, **shape}) or not plain(record) or canonical(record) != line:
        raise FormatError("the line is not a record in canonical form")
    if any(not record[name] for name in shape) or not line.isascii():
        raise FormatError("the record has an empty field or a character outside ASCII")
    if record["v"] != 1 or len(record["ts"]) != 27:
        raise FormatError("the record has another version or a malformed time")
    if any(len(record.get(name, "")) not in (0, 64) for name in ("blocks_root", "digest")):
        raise FormatError("the record has a malformed digest")
    return record


# --- Certificates ----------------------------------------------------------------------------

TEXTS = dict.fromkeys(("id", "requester", "reference", "legal_basis", "requested_at"), str)
KINDS = {"session", "tenant", "tenants", "user", "deployment", "workspace", "account"}
OUTCOMES = {"pass", "fail", "skipped"}
PREDICATE = {
    "id": str,
    "issued_at": str,
    "request": {**TEXTS, "kind": KINDS},
    "scope": {"workspace": str, "deployment": str, "commitments": [str]},
    "keys": [{"key_id": str, "generation": int, "session_ref": str, "tenant_ref": str}],
    "root": (
        None,
        {"kind": str, "root_id": str, "epoch_destroyed": int, "evidence": str, "read_back": str},
    ),
    "tiers": [{"tier": str, "blocks": int, "bytes": int, "unlinked": bool}],
    "gpu": {"evicted": int, "scrubbed": int, "held": int},
    "verification": [{"name": str, "outcome": OUTCOMES, "detail": str}],
    "claim_class": (None, {"device", "cryptographic", "logical"}),
    "complete_after": str,
    "snapshot_retention_days": {"root": int, "machine": int},
    "exclusions": [str],
    "unacknowledged": [str],
    "steps": [{"name": str, "at": str}],
    "children": [
        {
            "deployment": str,
            "outcome": {"erased", "nothing_held", "pending"},
            "certificate_id": str,
            "payload_sha256": str,
        }
    ],
    "software": {"name": str, "version": str},
    "policy_revision": str,
    "log": str,
}
STATEMENT = {
    "_type": str,
    "predicateType": str,
    "predicate": PREDICATE,
    "subject": [{"digest": {"sha256": str}, "name": str}],
}
LOG_PROOF = {"format": str, "key": str, "proof": str, "record": str}
DOCUMENT = {
    "envelope": {
        "payload": str,
        "payloadType": str,
        "signatures": [{"keyid": str, "sig": str}],
    },
    "format": str,
    "log": {"key": str, "proof": str, "record": str},
    "public_key": str,
    "sha256": str,
}
OPENING = {"id": str, "kind": KINDS, "workspace": str, "deployment": str, "tenant": str}
OPENING.update({"salt": str, "type": str})
ANCHOR_KEY = {"version": int, "keyId": str, "purpose": str, "publicKey": str, "createdAt": int}
ANCHOR_KEY.update({"validUntil": (None, int), "revokedAt": (None, int)})
PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPES = {
    name: f"https://kvrun.dev/{name}/v1"
    for name in ("erasure-certificate", "key-deletion-record", "erasure-parent")
}


def read_anchor(data: bytes) -> dict:
    """The operator's public keys, as ``kvrun trust export`` prints them."""
    anchor = load(data, "the trust anchor")
    if isinstance(anchor, dict):
        anchor.setdefault("witness_keys", [])
    if not fits(anchor, {"format": str, "keys": [dict], "log_keys": [str], "witness_keys": [str]}):
        raise FormatError("not a trust anchor")
    if anchor["format"] != "kvrun-trust/v1":
        raise UnknownVersionError(f"unknown trust anchor format {anchor['format'][:40]!r}")
    keys = []
    for stated in anchor["keys"]:
        key = {name: stated.get(name) for name in ANCHOR_KEY}
        if not fits(key, ANCHOR_KEY):
            raise FormatError("the trust anchor has a malformed key")
        padded = key["publicKey"] + "=" * (-len(key["publicKey"]) % 4)
        key["raw"] = unbase64(padded.replace("-", "+").replace("_", "/"))
        if len(key["raw"]) != 32 or sha256(key["raw"]).hex()[:16] != key["keyId"]:
            raise FormatError(f"key {key['keyId'][:40]} of the trust anchor is another key")
        keys.append(key)
    logs = [verifier_key(text) for text in anchor["log_keys"]]
    witnesses = [verifier_key(text) for text in anchor["witness_keys"]]
    if any(key["type"] != 1 for key in logs) or any(key["type"] != 4 for key in witnesses):
        raise FormatError("a log's key has type 1, a witness's key type 4")
    revoked = {
        key["raw"]: key["revokedAt"]
        for key in keys
        if key["purpose"] == "checkpoint" and key["revokedAt"] is not None
    }
    return {"keys": keys, "logs": logs, "witnesses": witnesses, "revoked_logs": revoked}


def check_certificate(
    data: bytes, *, anchor=None, now: float, opening=None, subject=None, log_proof=None
) -> list:
    """Every check as (name, verdict, code, detail). ``anchor`` as :func:`read_anchor` gives it."""
    checks: list = []

    def say(name, verdict, code, detail=""):
        checks.append((name, verdict, code, detail))

    try:
        parts = take_apart(data)
    except UnknownVersionError as error:
        say("document", FAIL, "unknown_version", str(error))
        return checks
    except FormatError as error:
        say("document", FAIL, "malformed", str(error))
        return checks
    if not parts["intact"]:
        say("document", FAIL, "changed", "the checksum does not fit: not the file that was issued")
        return checks
    say("document", PASS, "well_formed", "one line of canonical JSON")

    envelope, public_key, payload = parts["envelope"], parts["public_key"], parts["payload"]
    kind, keyid = envelope["payloadType"].encode(), envelope["signatures"][0]["keyid"]
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    if keyid != sha256(public_key).hex()[:16] or not signed_by(
        public_key, message, parts["signature"]
    ):
        say("signature", FAIL, "bad_signature", "not the signature of this statement by this key")
        return checks
    say("signature", PASS, "signed", f"Ed25519 by key {keyid}")

    try:
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise UnknownVersionError(f"unknown payload type {envelope['payloadType'][:40]!r}")
        stated = read_statement(payload)
    except UnknownVersionError as error:
        say("statement", FAIL, "unknown_version", str(error))
        return checks
    except FormatError as error:
        say("statement", FAIL, "malformed", str(error))
        return checks
    say("statement", PASS, "understood", f"{stated['id']}, issued {stated['issued_at']}")

    revoked = anchor["revoked_logs"] if anchor else {}
    named = bool(anchor and (anchor["logs"] or revoked))
    witnesses = anchor["witnesses"] if anchor else []
    logged, digest = parts["logged"], sha256(payload).hex()

    def look(logged, log):
        """The tree under the proof's checkpoint, and why the log does not hold the statement."""
        keys = [logged["key"]]
        if named:  # no other log may speak for the one that is named
            keys = [key for key in anchor["logs"] if key["name"] == log]
            keys += [log_key(log, raw) for raw in revoked]
        tree = open_checkpoint(logged["checkpoint"], keys, witnesses)
        return tree, check_log(logged, digest, log, tree, revoked)

    def say_logged(name, logged, problem):
        if problem:
            say(name, FAIL, *problem)
            return
        answer = (PASS, "included") if named else (UNKNOWN, "log_self_asserted")
        say(name, *answer, f"record {logged['index']} of {logged['record']['log']}")

    tree, log_problem = look(logged, stated["log"])

    say("signer", *check_signer(parts, stated, anchor, tree if not log_problem else None))

    issued = seconds(stated["issued_at"])
    course = [seconds(stated["request"]["requested_at"])]
    course += [seconds(step["at"]) for step in stated["steps"]] + [issued]
    steps_back = [after - before for before, after in pairs(course)]
    if issued > now + FUTURE_S:
        say("time", FAIL, "from_the_future", f"issued at {stated['issued_at']}, later than now")
    elif min(steps_back) < -CLOCK_S:
        say("time", FAIL, "times_contradict", "request, steps and issue are not in order")
    else:
        say("time", PASS, "plausible", f"{issued - course[0]:.1f} s from request to issue")

    say_logged("log", logged, log_problem)

    broken = tree["broken"] & {key["name"] for key in witnesses}
    if broken:
        say("witness", FAIL, "bad_cosignature", f"by {', '.join(sorted(broken))}")
    elif tree["cosigned"] and not log_problem:
        names = sorted({name for name, _ in tree["cosigned"]})
        say("witness", PASS, "cosigned", f"by {', '.join(names)}")
    else:
        say("witness", UNKNOWN, "no_witness", "no cosignature of a known witness")

    if log_proof is not None:
        try:
            other = read_log_proof(log_proof)
        except FormatError as error:
            say("control_log", FAIL, "malformed", str(error))
        else:
            log = other["record"]["log"]
            problem = ("foreign_log", f"{log} is no control plane's log")
            # The maker of the certificate has the keys of its own log.
            if log != stated["log"] and is_control_log(log, stated["scope"]["workspace"]):
                problem = look(other, log)[1]
            say_logged("control_log", other, problem)

    say("erasure", *check_erasure(stated, now))
    say("subject", *check_subject(stated, opening, subject))
    return checks


def take_apart(data: bytes) -> dict:
    """The parts of a certificate file."""
    if len(data) > 128 << 20:
        raise FormatError("a certificate has at most 128 MiB")
    document = load(data, "the certificate")
    if not isinstance(document, dict) or not isinstance(document.get("format"), str):
        raise FormatError("not a certificate")
    if document["format"] != "kvrun-certificate/v1":
        raise UnknownVersionError(f"unknown format {document['format'][:40]!r}")
    if not fits(document, DOCUMENT) or canonical(document) + b"\n" != data:
        raise FormatError("the certificate is not one line of canonical JSON with its fields")
    envelope = document["envelope"]
    if len(envelope["signatures"]) != 1:
        raise FormatError("a certificate has exactly one signature")
    body = {name: value for name, value in document.items() if name != "sha256"}
    parts = {
        "envelope": envelope,
        "payload": unbase64(envelope["payload"]),
        "signature": unbase64(envelope["signatures"][0]["sig"]),
        "public_key": unbase64(document["public_key"]),
        "logged": read_logged(document["log"]),
        "intact": sha256(canonical(body)).hex() == document["sha256"],
    }
    if len(parts["public_key"]) != 32 or len(parts["signature"]) != 64:
        raise FormatError("an Ed25519 public key has 32 bytes and a signature 64")
    return parts


def read_logged(log: dict) -> dict:
    """A record, and the proof that a log has it."""
    index, path, checkpoint = read_proof(log["proof"].encode())
    logged = {
        "record": read_record(log["record"].encode()),
        "line": log["record"].encode(),
        "index": index,
        "path": path,
        "checkpoint": checkpoint,
        "key": verifier_key(log["key"]),
    }
    open_checkpoint(checkpoint, ())
    if logged["key"]["type"] != 1 or log["key"] != log["key"].strip():
        raise FormatError("the log's verifier key is not of type 1")
    return logged


def read_log_proof(data: bytes) -> dict:
    """The file beside a certificate that shows it in the control plane's log."""
    if len(data) > 1 << 20:
        raise FormatError("a log proof has at most 1 MiB")
    file = load(data, "the log proof")
    if not fits(file, LOG_PROOF) or canonical(file) + b"\n" != data:
        raise FormatError("the log proof is not one line of canonical JSON with its fields")
    if file["format"] != "kvrun-log-proof/v1":
        raise FormatError("not a log proof of this version")
    return read_logged(file)


def is_control_log(log: str, workspace: str) -> bool:
    """Whether the name is WORKSPACE/control/HOST; only the given workspace may hold slashes."""
    after = len(workspace) if log.startswith(workspace + "/") else log.find("/")
    parts = log[after + 1 :].split("/")
    return after > -1 and len(parts) == 2 and parts[0] == "control" and parts[1] != ""


def read_proof(data: bytes):
    """Index, path and checkpoint of a C2SP tlog-proof without extra data."""
    head, separator, checkpoint = data.partition(b"\n\n")
    lines = head.decode("ascii", "replace").split("\n")
    if not separator or lines[0] != "c2sp.org/tlog-proof@v1" or len(lines) < 2:
        raise FormatError("not a tlog-proof")
    if not re.fullmatch(r"index (0|[1-9][0-9]{0,15})", lines[1]):
        raise FormatError("a proof's second line is its index")
    path = [unbase64(line) for line in lines[2:]]
    if len(path) > 64 or any(len(item) != 32 for item in path):
        raise FormatError("a proof's path is at most 64 hashes")
    return int(lines[1][6:]), path, checkpoint


def read_statement(payload: bytes) -> dict:
    """The predicate of the signed in-toto statement."""
    whole = load(payload, "the statement")
    outer = isinstance(whole, dict) and [whole.get("_type"), whole.get("predicateType")]
    if not outer or not all(isinstance(item, str) for item in outer):
        raise FormatError("not an in-toto statement")
    if outer[0] != "https://in-toto.io/Statement/v1" or outer[1] not in TYPES.values():
        raise UnknownVersionError(f"unknown statement type {outer[1][:80]!r}")
    if not fits(whole, STATEMENT) or not plain(whole) or canonical(whole) != payload:
        raise FormatError("the statement has other fields, values or another form")
    stated, children = whole["predicate"], whole["predicate"]["children"]
    commitments = stated["scope"]["commitments"]
    subjects = [
        {"digest": {"sha256": item}, "name": stated["request"]["kind"]} for item in commitments
    ]
    if not commitments or commitments != sorted(set(commitments)) or subjects != whole["subject"]:
        raise FormatError("subjects and commitments do not fit")
    digests = commitments + [item["payload_sha256"] for item in children if item["payload_sha256"]]
    if not all(is_hex(item, 64) for item in digests):
        raise FormatError("a digest is not 64 hexadecimal digits")
    logical = stated["claim_class"] == "logical"
    kind = "key-deletion-record" if logical else "erasure-certificate"
    if outer[1] != TYPES["erasure-parent" if children else kind]:
        raise FormatError("the statement's type does not fit its class and children")
    times = [stated["issued_at"], stated["complete_after"], stated["request"]["requested_at"]]
    for text in times + [step["at"] for step in stated["steps"]]:
        seconds(text)
    return stated


def check_log(logged, digest, log, tree, revoked):
    """Why the log does not prove that it holds this certificate, as (code, detail), or None."""
    record = logged["record"]
    names = {record["log"], tree["origin"], logged["key"]["name"], log}
    if len(names) > 1:
        return "foreign_log", f"record, checkpoint and statement name {sorted(names)}"
    about = (record["event"], record.get("digest")) == ("certified", digest)
    if not about or record["seq"] != logged["index"]:
        return "not_in_log", "the log's record is not about this certificate"
    if not tree["signed"] or log in tree["broken"]:
        return "log_not_signed", "the checkpoint has no valid signature of the log"
    leaf = leaf_hash(logged["line"])
    if not includes(leaf, logged["index"], tree["size"], logged["path"], tree["root"]):
        return "wrong_log_root", "the record is not in the tree under the checkpoint"
    ends = [revoked.get(raw) for raw in tree["signed_raw"]]
    if any(end is None or min(seen_at(tree), default=end) < end for end in ends):
        return None
    return "revoked_log_key", "the log's key is revoked, and no witness saw the checkpoint before"


def seen_at(tree):
    """When witnesses saw a checkpoint, by their own clocks."""
    return [at for _, at in tree["cosigned"] if at]


def check_signer(parts, stated, anchor, tree):
    """Whether the key is one that the operator named; ``tree`` where the log holds the record."""
    if anchor is None:
        return UNKNOWN, "self_asserted", "the key came with the certificate; give --trust"
    known = [
        key
        for key in anchor["keys"]
        if key["purpose"] == "certificate" and key["raw"] == parts["public_key"]
    ]
    if not known:
        return FAIL, "wrong_signer", "the key is not a certificate key of the trust anchor"
    key, issued = known[0], seconds(stated["issued_at"])
    until, revoked = key["validUntil"], key["revokedAt"]
    if issued < key["createdAt"] or (until is not None and issued >= until):
        return FAIL, "outside_validity", "the key was not valid when the certificate was issued"
    if revoked is None:
        return PASS, "trusted", f"key {key['keyId']} of the trust anchor"
    # Whoever stole the key can write any date into a certificate, but not into a cosignature.
    times = seen_at(tree) if tree else []
    if times and min(times) < revoked:
        return PASS, "revoked_later", "a witness had seen the certificate before the revocation"
    return FAIL, "revoked_signer", "the key is revoked, and no witness saw the certificate before"


def check_erasure(stated, now):
    """What the certificate claims, and whether its parts agree."""
    failed = [item["name"] for item in stated["verification"] if item["outcome"] == "fail"]
    held = stated["claim_class"] is not None
    outcomes = [item["outcome"] for item in stated["children"]]
    pending = [item["deployment"] for item in stated["children"] if item["outcome"] == "pending"]
    if failed:
        return FAIL, "verification_failed", f"failed after the erasure: {', '.join(failed)}"
    if {held, bool(stated["keys"]), stated["root"] is not None} != {held}:
        return FAIL, "claim_contradicts", "class, destroyed keys and root do not fit together"
    if stated["unacknowledged"] or pending:
        names = ", ".join(stated["unacknowledged"] + pending)
        return UNKNOWN, "unacknowledged", f"not confirmed when issued: {names}"
    if stated["claim_class"] == "logical":
        return UNKNOWN, "logical_only", "a key deletion record: this is no erasure"
    if stated["gpu"]["held"]:
        return UNKNOWN, "pages_held", "engine memory held pages of it when it was issued"
    if "erased" in outcomes:
        return PASS, "lists_children", "certificates of deployments: check each of them"
    if not held:
        return PASS, "nothing_held", "nothing was held, so no key was destroyed"
    if seconds(stated["complete_after"]) > now:
        return UNKNOWN, "not_yet_complete", f"complete after {stated['complete_after']}"
    count = len(stated["keys"])
    return PASS, "complete", f"class {stated['claim_class']}, {count} key(s) destroyed"


def check_subject(stated, opening, subject):
    """Whom the certificate is about: only the opening shows that."""
    if opening is None:
        if subject is not None:
            return FAIL, "bad_opening", "a subject can only be checked with its opening"
        return UNKNOWN, "not_opened", "whom it is about shows with the opening (--opening)"
    try:
        opened = load(opening, "the opening")
        if not fits(opened, OPENING) or not plain(opened) or canonical(opened) != opening:
            raise FormatError("not an opening in its one form")
        if opened["type"] != "kvrun-erasure-opening/v1" or not is_hex(opened["salt"], 64):
            raise FormatError("not an opening of this version")
    except FormatError as error:
        return FAIL, "bad_opening", str(error)
    if sha256(opening).hex() not in stated["scope"]["commitments"]:
        return FAIL, "bad_opening", "the opening fits no commitment in the certificate"
    found = f"it is about {opened['kind']} {opened['id']}"
    if subject is not None and subject != opened["id"]:
        return FAIL, "other_subject", found
    return PASS, "opened", found


def pairs(items):
    """Each item with the one after it."""
    return [(items[place], items[place + 1]) for place in range(len(items) - 1)]


# --- Audit logs ------------------------------------------------------------------------------

POINT = {"epoch": int, "frontier": [str], "prev": str, "size": int, "ts": str}
MANIFEST = {"after": POINT, "before": POINT, "checkpoint": str, "file_bytes": int}
MANIFEST.update(dict.fromkeys(("first_ts", "log", "sha256", "signer"), str), v=int)
ASPECTS = ("integrity", "completeness", "freshness", "witnessed")


STONE = {"after": POINT, "before": POINT, "reason": str}
STONE["segments"] = [{"file_bytes": int, "first_seq": int, "sha256": str}]


def check_point(point):
    """A place in a log: as many subtree hashes as its size has 1 bits."""
    try:
        frontier = [bytes.fromhex(item) for item in point["frontier"]]
    except ValueError:
        raise FormatError("a hash is not hexadecimal") from None
    if point["size"] < 0 or len(frontier) != bin(point["size"]).count("1"):
        raise FormatError("the hashes do not fit the size")


def open_tombstone(note: bytes, keys) -> dict:
    """What a collector signed about records that it deleted."""
    text, signatures = read_note(note)
    lines = text.split(b"\n")
    if len(lines) != 4 or lines[0] != b"kvrun-audit-tombstone/v1" or lines[3]:
        raise FormatError("the note is no tombstone")
    signed = False
    for name, key_id, signature in signatures:
        for key in keys:
            if (key["name"], key["id"], key["type"]) != (name, key_id, 4):
                continue
            stated = int.from_bytes(signature[:8], "big")
            message = b"cosignature/v1\ntime %d\n" % stated + text
            if len(signature) != 72 or not signed_by(key["raw"], message, signature[8:]):
                raise FormatError(f"the signature of {name} is not valid")
            signed = True
    stone = load(lines[2], "the tombstone")
    if not fits(stone, STONE):
        raise FormatError("the tombstone is malformed")
    check_point(stone["before"])
    check_point(stone["after"])
    return {**stone, "log": lines[1].decode(), "signed": signed}


class LogCheck:
    """Walks the segments of one log and gathers findings: (aspect, verdict, code, detail).

    Nothing that the log says of itself is believed: its key counts only as self-asserted.
    ``keys``, ``witnesses`` and ``remembered`` (checkpoints) come from elsewhere.
    """

    def __init__(
        self,
        keys=(),
        witnesses=(),
        remembered=(),
        tombstones=(),
        now=None,
        max_age=None,
        silence=300.0,
    ):
        self.trusted, self.keys = bool(keys), list(keys)
        self.witnesses, self.remembered = list(witnesses), list(remembered)
        self.tombstones = list(tombstones)
        self.now, self.max_age, self.silence = now, max_age, silence
        self.findings: list = []
        self.log_id, self.first_seq, self.last = "", 0, None
        self.anchors: list = []  # checkpoints: opened, source, remembered, done, good
        self.started, self.tree = False, None
        self.next = None  # what the next record must carry: seq, prev, epoch
        self.gaps: list = []

    def say(self, aspect, verdict, code, detail=""):
        """Note a finding."""
        self.findings.append((aspect, verdict, code, detail))

    def run(self, segments, latest=None, claimed_key=""):
        """Check segments, each as (name, bytes, manifest bytes or None), in order."""
        manifests = [self.manifest(name, raw) for name, _, raw in segments]
        if not self.trusted:
            self.adopt(claimed_key, [item for item in manifests if item])
        for note in self.remembered:
            self.anchor(note, "the remembered checkpoint", True)
        if latest is not None:
            self.anchor(latest, "the log's latest checkpoint", False)
        for place, (name, data, _) in enumerate(segments):
            self.segment(name, data, manifests[place], place == len(segments) - 1)
        self.conclude()
        return self

    def manifest(self, name, raw):
        """A segment's manifest, None where there is none or it is malformed."""
        if raw is None:
            return None
        try:
            manifest = load(raw, "the manifest")
            if isinstance(manifest, dict):
                manifest.setdefault("v", 1)
            if not fits(manifest, MANIFEST):
                raise FormatError("the manifest is malformed")
            for point in (manifest["before"], manifest["after"]):
                check_point(point)
        except FormatError as error:
            self.say("integrity", FAIL, "manifest_mismatch", f"{name}: {error}")
            return None
        return manifest

    def adopt(self, claimed_key, manifests):
        """Take the log's own keys, for want of others: the first one that it names, and those
        that signed the same checkpoint as one of them did, which is how a key is replaced."""
        found = []
        for text in dict.fromkeys([claimed_key, *(item["signer"] for item in manifests)]):
            try:
                found += [verifier_key(text)] if text else []
            except FormatError as error:
                if not found:
                    self.say("integrity", FAIL, "bad_checkpoint", str(error))
        self.keys, rest = found[:1], found[1:]
        notes = [item["checkpoint"].encode() for item in manifests]
        while True:
            joined = [key for key in rest if any(self.follows(note, key) for note in notes)]
            if not joined:
                return
            self.keys += joined
            rest = [key for key in rest if key not in joined]

    def follows(self, note, key):
        """Whether a checkpoint is signed both by this key and by one that is taken already."""
        try:
            signed = open_checkpoint(note, [*self.keys, key])["signed"]
        except FormatError:
            return False
        return key["id"] in signed and any(other["id"] in signed for other in self.keys)

    def anchor(self, note, source, remembered):
        """Take in a checkpoint: its root is compared where the tree has its size."""
        try:
            opened = open_checkpoint(note, self.keys, self.witnesses)
        except FormatError as error:
            self.say("integrity", FAIL, "bad_checkpoint", f"{source}: {error}")
            return
        self.log_id = self.log_id or opened["origin"]
        names = {key["name"] for key in self.witnesses}
        for name in opened["broken"] & names:
            self.say("witnessed", FAIL, "bad_cosignature", f"{source}: of {name}")
        if opened["origin"] != self.log_id:
            self.say("integrity", FAIL, "foreign_log", f"{source}: log {opened['origin']}")
        elif opened["origin"] not in opened["signers"] or opened["broken"] - names:
            self.say("integrity", FAIL, "not_signed", f"{source} has no valid signature")
        else:
            found = {"opened": opened, "source": source, "remembered": remembered}
            found.update(done=False, good=False)
            self.anchors.append(found)
            self.compare()

    def compare(self):
        """Compare every checkpoint of exactly this size with the tree."""
        for item in self.anchors:
            if self.tree is None or item["done"] or item["opened"]["size"] != self.tree.size:
                continue
            item["done"] = True
            item["good"] = item["opened"]["root"] == self.tree.root()
            if not item["good"]:
                code = "forked" if item["remembered"] else "root_mismatch"
                self.say("integrity", FAIL, code, f"not the records under {item['source']}")

    def begin(self, name, manifest, line):
        """Find where the first segment starts."""
        self.started = True
        try:
            first = read_record(line)
        except FormatError:
            first = None
        stated = first["log"] if first else (manifest["log"] if manifest else "")
        self.log_id = self.log_id or stated
        start = {"size": 0, "frontier": [], "prev": None, "epoch": 0}
        self.first_seq = first["seq"] if first else (manifest["before"]["size"] if manifest else 0)
        if manifest:
            start = manifest["before"]
            self.first_seq = start["size"]
        if self.first_seq == 0:
            prev = sha256(b"kvrun audit log v1\n" + self.log_id.encode()).hex()
            self.next, self.tree = (0, prev, 0), Tree()
        elif manifest:
            self.next = (start["size"], start["prev"], start["epoch"])
            self.tree = Tree(start["size"], map(bytes.fromhex, start["frontier"]))
        if self.first_seq:
            self.judge_start(manifest["before"] if manifest else None)
        self.compare()

    def judge_start(self, place):
        """What tombstones of known signers say of the records before the first one here."""
        stones = []
        for note in self.tombstones:
            try:
                stone = open_tombstone(note, self.witnesses)
            except FormatError as error:
                self.say("completeness", FAIL, "bad_tombstone", str(error))
                continue
            if stone["log"] == self.log_id and stone["signed"]:
                stones.append(stone)
        while place and place["size"]:
            fitting = [
                item
                for item in stones
                if item["after"] == place and item["before"]["size"] < place["size"]
            ]
            if not fitting:
                break
            stone = min(fitting, key=lambda item: item["before"]["size"])
            what = f"records {stone['before']['size']} to {place['size'] - 1}: {stone['reason']}"
            self.say("completeness", PASS, "pruned", what)
            place = stone["before"]
        if not place or place["size"]:
            self.say("completeness", UNKNOWN, "starts_late", f"at record {self.first_seq}")

    def segment(self, name, data, manifest, last):
        """Check one segment's records, and then that it is what its manifest says."""
        if data and not self.started:
            self.begin(name, manifest, data.split(b"\n", 1)[0])
        whole = data[: data.rfind(b"\n") + 1]
        if data != whole:
            verdict = FAIL if not last or manifest else PASS
            self.say("integrity", verdict, "torn", f"{name} ends within a record")
        self.records(whole.split(b"\n")[:-1])
        if manifest is None or not self.started:
            return
        if manifest["log"] != self.log_id:
            self.say("integrity", FAIL, "foreign_log", f"{name}: manifest of {manifest['log']}")
            return
        after = None
        if self.next and self.tree:
            after = {"size": self.tree.size, "prev": self.next[1], "epoch": self.next[2]}
            after["frontier"] = [item.hex() for item in self.tree.roots]
            after["ts"] = self.last["ts"] if self.last else manifest["before"]["ts"]
        content = (manifest["sha256"], manifest["file_bytes"])
        if after != manifest["after"] or content != (sha256(data).hex(), len(data)):
            self.say("integrity", FAIL, "manifest_mismatch", f"{name} is another segment")
        self.anchor(manifest["checkpoint"].encode(), f"the manifest of {name}", False)

    def records(self, lines):
        """Walk lines: chain, tree and times."""
        found = []
        before = self.last
        for line in lines:
            leaf = leaf_hash(line)
            try:
                record = read_record(line)
            except FormatError as error:
                self.say("integrity", FAIL, "malformed", str(error))
                if self.next:
                    self.next = (self.next[0] + 1, leaf.hex(), self.next[2])
            else:
                self.step(record)
                self.next = (record["seq"] + 1, leaf.hex(), record["epoch"])
                self.last = record
                found.append(record)
            if self.tree is not None:
                self.tree.append(leaf)
                self.compare()
        self.times(([before] if before else []) + found)

    def step(self, record):
        """Compare a record with the place where it stands."""
        seq, prev, epoch = self.next or (record["seq"], record["prev"], record["epoch"])
        if record["event"] == "gap":
            self.gaps.append(record)
        if record["log"] != self.log_id:
            self.say("integrity", FAIL, "foreign_log", f"record {record['seq']}")
        elif record["seq"] > seq:
            for aspect in ("integrity", "completeness"):
                self.say(aspect, FAIL, "missing_records", f"{seq} to {record['seq'] - 1}")
        elif record["seq"] < seq:
            self.say("integrity", FAIL, "out_of_order", f"{record['seq']} instead of {seq}")
        elif record["prev"] != prev:
            self.say("integrity", FAIL, "chain_broken", f"at record {seq}")
        elif record["epoch"] < epoch:
            self.say("integrity", FAIL, "epoch_order", f"at record {seq}")

    def times(self, records):
        """Clocks that step back, and pauses within an epoch."""
        texts = [record["ts"] for record in records]
        minutes = sorted({text[:16] + ":00.000000Z" for text in texts})
        if texts == sorted(texts) and not self.has_pause(minutes):
            return
        for before, after in pairs(records):
            try:
                step = seconds(after["ts"]) - seconds(before["ts"])
            except FormatError as error:
                self.say("integrity", FAIL, "malformed", f"record {after['seq']}: {error}")
                continue
            if step < -CLOCK_S:
                self.say("freshness", FAIL, "clock_backwards", f"at record {after['seq']}")
            elif step > self.silence and after["epoch"] == before["epoch"]:
                self.say("freshness", FAIL, "silence", f"{step:.0f} s before {after['seq']}")

    def has_pause(self, minutes):
        """Whether there may be a pause between times that differ by whole minutes."""
        try:
            steps = [seconds(after) - seconds(before) for before, after in pairs(minutes)]
        except FormatError:
            return True
        return any(step > self.silence - 60 for step in steps)

    def conclude(self):
        """What all of it shows."""
        size = self.next[0] if self.next else 0
        covered = [item for item in self.anchors if item["good"] and item["opened"]["size"] <= size]
        reach = max((item["opened"]["size"] for item in covered), default=0)
        if reach:
            what = (
                f"{reach - self.first_seq} records under a signed checkpoint, {size - reach} more"
            )
            self.say("integrity", PASS, "covered", what)
        else:
            self.say("integrity", UNKNOWN, "no_checkpoint", "only their chain was checked")
        if self.keys and not self.trusted:
            self.say("integrity", PASS, "self_asserted", "the key came from the log itself")

        for item in self.anchors:
            if item["opened"]["size"] > size:
                code = "rolled_back" if item["remembered"] else "truncated"
                code = code if self.started else "log_missing"
                what = f"{item['source']} covers {item['opened']['size']} records, not {size}"
                self.say("completeness", FAIL, code, what)
        for gap in self.gaps:
            lost = gap.get("lost", 0)
            code, verdict = ("records_lost", FAIL) if lost else ("gap", PASS)
            self.say("completeness", verdict, code, f"record {gap['seq']}, {lost} lost")
        if any(item["remembered"] or item["opened"]["cosigned"] for item in covered):
            self.say("completeness", PASS, "anchored", "as far as another party vouches")
        else:
            self.say("completeness", UNKNOWN, "tail_not_anchored", "a cut tail would not show")

        self.freshness()
        seen = sorted({name for item in covered for name, _ in item["opened"]["cosigned"]})
        if not seen:
            self.say("witnessed", UNKNOWN, "no_witness", "a fork shown to others would not show")
        for name in seen:
            self.say("witnessed", PASS, "cosigned", f"by {name}")

    def freshness(self):
        """How old the last record is."""
        if self.last is None:
            return
        what = f"the last record is of {self.last['ts']}, by the writer's clock"
        try:
            last = seconds(self.last["ts"])
        except FormatError as error:
            self.say("integrity", FAIL, "malformed", str(error))
            return
        if self.now is not None and last > self.now + FUTURE_S:
            self.say("freshness", FAIL, "from_the_future", what)
        elif self.now is None or self.max_age is None:
            self.say("freshness", UNKNOWN, "last_record", what)
        elif self.now - last > self.max_age:
            self.say("freshness", FAIL, "stale", what)
        else:
            self.say("freshness", PASS, "last_record", what)

    def verdict(self, aspect):
        """The answer to one question."""
        found = {verdict for where, verdict, _, _ in self.findings if where == aspect}
        return next((item for item in (FAIL, UNKNOWN, PASS) if item in found), UNKNOWN)


# --- Command line ----------------------------------------------------------------------------


def read(path):
    """A file's bytes, None where there is none."""
    return Path(path).read_bytes() if Path(path).is_file() else None


def log_files(paths):
    """Segments with their manifests; beside them latest checkpoint, key and tombstones."""
    paths = [Path(path) for path in paths]
    files = [file for path in paths for file in (segments_in(path) if path.is_dir() else [path])]
    files.sort(key=lambda file: file.name)
    latest = claimed = None
    tombstones = []
    for folder in sorted({path if path.is_dir() else path.parent for path in paths}):
        tombstones += [path.read_bytes() for path in sorted(folder.glob("*.tombstone"))]
        present = segments_in(folder)
        if not present or present[-1] in files:
            latest = read(folder / "checkpoint") or latest
        claimed = read(folder / "signer.vkey") or claimed
    segments = []
    for file in files:
        stem = file.name[:-6] if file.name.endswith(".jsonl") else file.name
        manifest = read(file.with_name(f"{stem}.manifest.json"))
        segments.append((file.name, file.read_bytes(), manifest))
    return segments, latest, (claimed or b"").decode(errors="replace").strip(), tombstones


def segments_in(folder):
    """The segments of a log in order."""
    return sorted(
        path for path in folder.iterdir() if re.fullmatch(r"segment-\d{16}\.jsonl", path.name)
    )


def keys_in(path):
    """The verifier keys in a file, one a line."""
    lines = Path(path).read_text().splitlines() if path else []
    return [verifier_key(line) for line in lines if line.strip() and line[0] != "#"]


def exit_status(verdicts, codes) -> int:
    """1 when something failed, 2 when a key was only taken from the file, else 0."""
    if FAIL in verdicts:
        return 1
    return 2 if {"self_asserted", "log_self_asserted"} & set(codes) else 0


def main(arguments=None) -> int:
    """Check what the command line names, print the results, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="a certificate; or segments or log folders")
    parser.add_argument("--trust", help="the operator's trust anchor, from a trusted source")
    parser.add_argument("--opening", help="the opening that was handed out with the certificate")
    parser.add_argument("--log-proof", help="shows the certificate in the control plane's log")
    parser.add_argument("--subject", help="the id that the certificate must be about")
    parser.add_argument("--checkpoint", action="append", default=[], help="kept by somebody else")
    parser.add_argument("--key", help="file with the log's verifier key")
    parser.add_argument("--witness-key", help="file with verifier keys of witnesses")
    parser.add_argument("--max-age", type=float, help="oldest allowed last record, in seconds")
    parser.add_argument("--max-silence", type=float, default=300.0, help="longest pause, seconds")
    given = parser.parse_args(arguments)
    try:
        anchor = read_anchor(Path(given.trust).read_bytes()) if given.trust else None
        first = read(given.files[0]) or b""
        certificate = b'"envelope"' in first[:4096] or b'"kvrun-certificate/' in first
        if certificate or given.opening or given.subject or given.log_proof:
            checks = check_certificate(
                first,
                anchor=anchor,
                now=time.time(),
                opening=Path(given.opening).read_bytes() if given.opening else None,
                subject=given.subject,
                log_proof=Path(given.log_proof).read_bytes() if given.log_proof else None,
            )
            for name, verdict, code, detail in checks:
                print(f"{name:<11} {verdict:<8} {code}: {detail}")
            return exit_status([item[1] for item in checks], [item[2] for item in checks])
        segments, latest, claimed, tombstones = log_files(given.files)
        result = LogCheck(
            keys=keys_in(given.key) + (anchor["logs"] if anchor else []),
            witnesses=keys_in(given.witness_key) + (anchor["witnesses"] if anchor else []),
            remembered=[Path(path).read_bytes() for path in given.checkpoint],
            tombstones=tombstones,
            now=time.time(),
            max_age=given.max_age,
            silence=given.max_silence,
        ).run(segments, latest, claimed)
    except (OSError, FormatError, UnicodeError) as error:
        print(f"kvrun_verify: {error}", file=sys.stderr)
        return 1
    print(f"log {result.log_id or '(none)'}")
    for aspect in ASPECTS:
        verdict = result.verdict(aspect)
        found = [item for item in result.findings if item[:2] == (aspect, verdict)]
        shown = "; ".join(f"{code}: {detail}" for _, _, code, detail in found[:3])
        print(f"{aspect:<13} {verdict:<8} {shown}")
    findings = result.findings
    status = exit_status([item[1] for item in findings], [])
    return status or (0 if result.trusted else 2)


if __name__ == "__main__":
    sys.exit(main())
