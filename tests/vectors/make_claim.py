"""Test vectors for claims, made from docs/spec/claim.md alone: nothing of kvrun is imported.

Run: python tests/vectors/make_claim.py > tests/vectors/claim.json
"""

import base64
import hashlib
import json
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(private: Ed25519PrivateKey, payload: bytes) -> str:
    key_id = hashlib.sha256(private.public_key().public_bytes_raw()).hexdigest()[:16]
    signed = "kvc1." + key_id + "." + b64(payload)
    return signed + "." + b64(private.sign(signed.encode()))


def payload_of(claim: dict) -> bytes:
    return json.dumps(claim, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def main() -> None:
    seed = bytes(range(32))
    private = Ed25519PrivateKey.from_private_bytes(seed)
    plain = {
        "version": 1,
        "workspace": "w1",
        "deployment": "chat",
        "tenant": "alice",
        "session": "default",
        "generation": 1,
        "salt": b64(bytes(32)),
        "request_id": "kvr-000102030405060708090a0b0c0d0e0f",
        "nonce": b64(bytes(range(16))),
        "uses": 1,
        "issued_at": 1_800_000_000,
        "expires_at": 1_800_000_300,
        "attributes": {},
    }
    rich = {
        **plain,
        "tenant": "".join(chr(c) for c in range(0x21, 0x7F)),
        "session": "~" * 128,
        "generation": 2**63 - 1,
        "salt": b64(b"\xff" * 32),
        "uses": 4096,
        "expires_at": 1_800_003_600,
        "attributes": {"region": "eu-1", "a.b_c-d": 'quote " and \\ back'},
    }
    bad = [
        ("version 2", {**plain, "version": 2}),
        ("a missing field", {k: v for k, v in plain.items() if k != "nonce"}),
        ("no version", {k: v for k, v in plain.items() if k != "version"}),
        ("no attributes", {k: v for k, v in plain.items() if k != "attributes"}),
        ("an unknown field", {**plain, "admin": "yes"}),
        ("an id with a space", {**plain, "tenant": "a b"}),
        ("an empty id", {**plain, "session": ""}),
        ("an id of 129 characters", {**plain, "tenant": "a" * 129}),
        ("a short salt", {**plain, "salt": "abc"}),
        ("no uses", {**plain, "uses": 0}),
        ("too many uses", {**plain, "uses": 4097}),
        ("a lifetime over an hour", {**plain, "expires_at": plain["issued_at"] + 3601}),
        ("no lifetime", {**plain, "expires_at": plain["issued_at"]}),
        ("a float time", {**plain, "issued_at": 1_800_000_000.5}),
        ("a negative generation", {**plain, "generation": -1}),
    ]
    json.dump(
        {
            "private_key": seed.hex(),
            "public_key": private.public_key().public_bytes_raw().hex(),
            "valid": [
                {"claim": claim, "token": token(private, payload_of(claim))}
                for claim in (plain, rich)
            ],
            "signed_but_malformed": [
                {"what": what, "token": token(private, payload_of(claim))} for what, claim in bad
            ]
            + [
                {
                    "what": "spaces in the payload",
                    "token": token(private, json.dumps(plain, sort_keys=True).encode()),
                },
                {
                    "what": "unsorted keys",
                    "token": token(private, json.dumps(plain, separators=(",", ":")).encode()),
                },
            ],
        },
        sys.stdout,
        indent=1,
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
