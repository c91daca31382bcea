"""Make erasure-certificate.json: vectors of the certificate format. Uses nothing of kvrun.

Run it in this folder: ``python make_erasure_certificate.py``. Needs only the cryptography package.
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOG = "acme/d1/vector/erasures"
CONTROL_LOG = "acme/control/host"
WITNESS = "witness.test/w"
SIGNER_SEED, LOG_SEED, WITNESS_SEED, CONTROL_SEED = (bytes([n]) * 32 for n in (11, 12, 13, 14))
ISSUED = "2026-01-31T12:00:00.250000Z"
COSIGNED = 1769860860
NOW = 1769864400


def sha(data):
    return hashlib.sha256(data).digest()


def b64(data):
    return base64.b64encode(data).decode()


def jcs(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8")


def private(seed):
    return Ed25519PrivateKey.from_private_bytes(seed)


def public(seed):
    return private(seed).public_key().public_bytes_raw()


def key_id(name, kind, seed):
    return sha(name.encode() + b"\n" + bytes([kind]) + public(seed))[:4]


def verifier_key(name, kind, seed):
    return f"{name}+{key_id(name, kind, seed).hex()}+{b64(bytes([kind]) + public(seed))}"


def note_line(name, kind, seed, message, prefix=b""):
    signature = private(seed).sign(message)
    return f"\u2014 {name} {b64(key_id(name, kind, seed) + prefix + signature)}\n"


OPENING = {
    "type": "kvrun-erasure-opening/v1",
    "kind": "user",
    "id": "Zo\u00eb \u5c71\u7530",
    "workspace": "acme",
    "deployment": "d1",
    "tenant": "Zo\u00eb \u5c71\u7530",
    "salt": "a5" * 32,
}


def statement(commitment, held=0):
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "https://kvrun.dev/erasure-certificate/v1",
        "subject": [{"name": "user", "digest": {"sha256": commitment}}],
        "predicate": {
            "id": "er-vector",
            "issued_at": ISSUED,
            "request": {
                "id": "req-vector",
                "kind": "user",
                "requester": 'Zo\u00eb "the\\officer"',
                "reference": "DSAR-7",
                "legal_basis": "GDPR Art. 17",
                "requested_at": "2026-01-31T12:00:00.000000Z",
            },
            "scope": {"workspace": "acme", "deployment": "d1", "commitments": [commitment]},
            "keys": [
                {
                    "key_id": f"{n:02x}" * 16,
                    "generation": n,
                    "session_ref": "0a" * 16,
                    "tenant_ref": "0b" * 16,
                }
                for n in (1, 2)
            ],
            "root": {
                "kind": "openbao",
                "root_id": "0c" * 16,
                "epoch_destroyed": 2**53 - 1,
                "evidence": "key version trimmed",
                "read_back": "",
            },
            "tiers": [{"tier": "object", "blocks": 3, "bytes": 300, "unlinked": False}],
            "gpu": {"evicted": 4, "scrubbed": 4 - held, "held": held},
            "verification": [{"name": "canary", "outcome": "pass", "detail": ""}],
            "claim_class": "cryptographic",
            "complete_after": "2026-01-31T12:00:00.100000Z",
            "snapshot_retention_days": {"root": 0, "machine": 0},
            "exclusions": ["what was printed"],
            "unacknowledged": [],
            "steps": [{"name": "refused", "at": "2026-01-31T12:00:00.050000Z"}],
            "children": [],
            "software": {"name": "kvrun", "version": "0.0.0"},
            "policy_revision": "builtin-1",
            "log": LOG,
        },
    }


def logged(log, seed, digest):
    """The second record of a log is about the certificate; a witness saw it."""
    first = {
        "v": 1, "log": log, "epoch": 1, "seq": 0, "ts": "2026-01-31T12:00:00.100000Z",
        "event": "log_opened", "outcome": "ok",
        "prev": hashlib.sha256(b"kvrun audit log v1\n" + log.encode()).hexdigest(),
    }  # fmt: skip
    leaves = [sha(b"\x00" + jcs(first))]
    record = {
        **first,
        "seq": 1,
        "ts": "2026-01-31T12:00:00.300000Z",
        "event": "certified",
        "digest": digest,
        "prev": leaves[0].hex(),
    }
    line = jcs(record)
    leaves.append(sha(b"\x00" + line))
    root = sha(b"\x01" + leaves[0] + leaves[1])
    text = f"{log}\n2\n{b64(root)}\n"
    cosigned = b"cosignature/v1\ntime %d\n" % COSIGNED + text.encode()
    note = text + "\n" + note_line(log, 1, seed, text.encode())
    note += note_line(WITNESS, 4, WITNESS_SEED, cosigned, COSIGNED.to_bytes(8, "big"))
    proof = f"c2sp.org/tlog-proof@v1\nindex 1\n{b64(leaves[0])}\n\n{note}"
    return {"key": verifier_key(log, 1, seed), "proof": proof, "record": line.decode()}


def log_proof(section):
    return jcs({"format": "kvrun-log-proof/v1", **section}).decode() + "\n"


def vectors(held=0):
    opening = jcs(OPENING)
    commitment = sha(opening).hex()
    payload = jcs(statement(commitment, held))
    kind = b"application/vnd.in-toto+json"
    pae = b" ".join([b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload])
    signature = private(SIGNER_SEED).sign(pae)
    keyid = sha(public(SIGNER_SEED)).hex()[:16]

    ledger = logged(LOG, LOG_SEED, sha(payload).hex())
    control = logged(CONTROL_LOG, CONTROL_SEED, sha(payload).hex())
    body = {
        "format": "kvrun-certificate/v1",
        "envelope": {
            "payload": b64(payload),
            "payloadType": kind.decode(),
            "signatures": [{"keyid": keyid, "sig": b64(signature)}],
        },
        "public_key": b64(public(SIGNER_SEED)),
        "log": ledger,
    }
    certificate = jcs({**body, "sha256": sha(jcs(body)).hex()}) + b"\n"
    anchor = {
        "format": "kvrun-trust/v1",
        "keys": [
            {
                "version": 1,
                "keyId": keyid,
                "purpose": "certificate",
                "publicKey": base64.urlsafe_b64encode(public(SIGNER_SEED)).rstrip(b"=").decode(),
                "createdAt": 1769000000,
                "validUntil": None,
                "revokedAt": None,
            }
        ],
        "log_keys": [ledger["key"], control["key"]],
        "witness_keys": [verifier_key(WITNESS, 4, WITNESS_SEED)],
    }
    return {
        "signer_seed": SIGNER_SEED.hex(),
        "opening": opening.decode(),
        "commitment": commitment,
        "payload": payload.decode(),
        "pae_sha256": sha(pae).hex(),
        "signature": signature.hex(),
        "keyid": keyid,
        "digest": sha(payload).hex(),
        "record": ledger["record"],
        "proof": ledger["proof"],
        "certificate": certificate.decode(),
        "log_proof": log_proof(control),
        "log_proof_of_the_ledger": log_proof(ledger),
        "anchor": json.dumps(anchor),
        "now": NOW,
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("erasure-certificate.json")
    found = {**vectors(), "certificate_with_held_pages": vectors(held=1)["certificate"]}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")
