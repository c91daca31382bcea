"""Make audit-log.json: vectors of the audit log's formats. Uses nothing of kvrun.

Run it in this folder: ``python make_audit_log.py``. Needs only the cryptography package.
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOG = "kvrun.test/instances/vector"
COUNT = 7


def sha(data):
    return hashlib.sha256(data).digest()


def root(leaves):
    if not leaves:
        return sha(b"")
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    return sha(b"\x01" + root(leaves[:split]) + root(leaves[split:]))


def path(leaves, index):
    if len(leaves) == 1:
        return []
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    if index < split:
        return [*path(leaves[:split], index), root(leaves[split:])]
    return [*path(leaves[split:], index - split), root(leaves[:split])]


def records():
    prev = hashlib.sha256(b"kvrun audit log v1\n" + LOG.encode()).hexdigest()
    for seq in range(COUNT):
        record = {
            "v": 1,
            "log": LOG,
            "epoch": 1,
            "seq": seq,
            "ts": f"2026-01-31T12:00:{seq:02d}.000250Z",
            "event": "log_opened" if seq == 0 else "sealed",
            "outcome": "ok",
            "prev": prev,
        }
        if seq:
            record |= {
                "workspace": 'w"1\\',
                "deployment": "d1",
                "tenant_ref": "aa" * 16,
                "session_ref": "bb" * 16,
                "request_id": f"req-{seq}",
                "tier": "memory",
                "blocks": seq,
                "bytes": 2**53 - 1,
                "tokens": 16 * seq,
                "blocks_root": root([sha(b"\x00" + bytes([n] * 16)) for n in range(seq)]).hex(),
            }
        line = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        prev = sha(b"\x00" + line).hex()
        yield line


def signature_line(name, kind, key, message, prefix=b""):
    public = key.public_key().public_bytes_raw()
    key_id = sha(name.encode() + b"\n" + bytes([kind]) + public)[:4]
    encoded = base64.b64encode(key_id + prefix + key.sign(message)).decode()
    return f"\u2014 {name} {encoded}\n"


def verifier_key(name, kind, key):
    public = key.public_key().public_bytes_raw()
    key_id = sha(name.encode() + b"\n" + bytes([kind]) + public)[:4].hex()
    return f"{name}+{key_id}+{base64.b64encode(bytes([kind]) + public).decode()}"


def main():
    log_seed, witness_seed = bytes(range(32)), bytes(range(32, 64))
    log_key = Ed25519PrivateKey.from_private_bytes(log_seed)
    witness = Ed25519PrivateKey.from_private_bytes(witness_seed)
    lines = list(records())
    leaves = [sha(b"\x00" + line) for line in lines]
    text = f"{LOG}\n{COUNT}\n{base64.b64encode(root(leaves)).decode()}\n"
    note = text + "\n" + signature_line(LOG, 1, log_key, text.encode())
    time = 1_769_860_800
    message = f"cosignature/v1\ntime {time}\n{text}".encode()
    stamp = time.to_bytes(8, "big")
    cosigned = note + signature_line("witness.test/w1", 4, witness, message, stamp)
    proofs = []
    for index in range(COUNT):
        hashes = "".join(base64.b64encode(item).decode() + "\n" for item in path(leaves, index))
        proofs.append(f"c2sp.org/tlog-proof@v1\nindex {index}\n{hashes}\n{note}")
    vectors = {
        "log": LOG,
        "log_seed": log_seed.hex(),
        "witness_seed": witness_seed.hex(),
        "verifier_key": verifier_key(LOG, 1, log_key),
        "witness_key": verifier_key("witness.test/w1", 4, witness),
        "cosignature_time": time,
        "lines": [line.decode() for line in lines],
        "leaves": [leaf.hex() for leaf in leaves],
        "roots": [root(leaves[:size]).hex() for size in range(COUNT + 1)],
        "checkpoint": note,
        "cosigned_checkpoint": cosigned,
        "proofs": proofs,
    }
    target = Path(__file__).with_name("audit-log.json")
    target.write_text(json.dumps(vectors, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
