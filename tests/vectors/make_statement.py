"""Make statement.json: vectors of signed statements. Uses nothing of kvrun.

Run it in this folder: ``python make_statement.py``. Needs only the cryptography package.
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED = bytes([21]) * 32
ISSUED = "2026-01-31T12:00:00.250000Z"


def jcs(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8")


def b64(data):
    return base64.b64encode(data).decode()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def document(predicate_type, subjects, predicate):
    payload = jcs(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "predicateType": predicate_type,
            "subject": [
                {"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)
            ],
            "predicate": predicate,
        }
    )
    private = Ed25519PrivateKey.from_private_bytes(SEED)
    public = private.public_key().public_bytes_raw()
    kind = b"application/vnd.in-toto+json"
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    whole = {
        "format": "kvrun-statement/v1",
        "envelope": {
            "payload": b64(payload),
            "payloadType": kind.decode(),
            "signatures": [{"keyid": sha(public)[:16], "sig": b64(private.sign(pae))}],
        },
        "public_key": b64(public),
    }
    return jcs(whole).decode() + "\n", payload


FILES = {
    "model.safetensors": b"weights",
    "config.json": b'{"kvrun_finetune": "000000000000000000000001"}\n',
    "adapter/adapter_model.safetensors": b"adapter",
    "evaluation.json": b'{"stands": "for one"}\n',
}
EVALUATION = {
    "issued_at": ISSUED,
    "id": "000000000000000000000001",
    "name": "Zo\u00eb-1",
    "base_digest": "ab" * 32,
    "evaluation_sha256": sha(FILES["evaluation.json"]),
    "harness": "kvrun-eval/1",
    "version": "0.0.0",
}
NUMBER = {"value": "0.0000", "low": "-0.1000", "high": "0.1000"}
ISOLATION = {
    "issued_at": ISSUED,
    "started_at": "2026-01-31T11:59:00.000000Z",
    "workspace": "w1",
    "deployment": "d1",
    "engine": "vllm 0.32.0",
    "version": "0.0.0",
    "prompt_tokens": 900,
    "restarted": True,
    "outcome": "pass",
    "checks": [{"name": "engine memory", "outcome": "pass", "detail": "\u201eseen\u201c"}],
    "timing": {
        "same_us": [10, 11],
        "other_us": [50, 51],
        "cold_us": [50, 52],
        "seed": 2**47,
        "seen": "no_leak",
        "ratio": {"value": "1.0000", "low": "0.9000", "high": "1.1000"},
        "cliffs_delta": NUMBER,
        "leak": NUMBER,
        "minimum_detectable_leak": "0.1400",
    },
    "erased": ["5f0c1d7e9a3b2c4d6e8f0a1b"],
}


def main():
    evaluation, evaluation_payload = document(
        "https://kvrun.dev/finetune-evaluation/v1",
        {name: sha(data) for name, data in FILES.items()},
        EVALUATION,
    )
    isolation, isolation_payload = document(
        "https://kvrun.dev/isolation-self-test/v1",
        {"kvrun.toml": sha(b"[deployment]\n")},
        ISOLATION,
    )
    found = {
        "seed": SEED.hex(),
        "files": {name: data.decode() for name, data in FILES.items()},
        "evaluation": evaluation,
        "evaluation_payload_sha256": sha(evaluation_payload),
        "isolation": isolation,
        "isolation_payload_sha256": sha(isolation_payload),
    }
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    Path(__file__).with_name("statement.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
