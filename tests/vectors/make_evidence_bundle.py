"""Writes evidence-bundle.json: a bundle's container, manifest and draw, made by hand.

It follows docs/spec/evidence-bundle.md with Python's standard library and cryptography, and shares
no code with kvrun.
"""

import base64
import hashlib
import json
import struct
import zlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DAY = (2026, 2, 1)
FILES = {
    "controls.json": b'{"format": "kvrun-controls/v1"}\n',
    "deployments/d-1/certificates/er-1.json": b"{}\n",
    "index.html": b"<!doctype html>\n",
    "populations/alerts.csv": b"raised_at\r\n",
    "schema/empty.md": b"",
}


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pae(kind: bytes, payload: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def manifest(seed: bytes) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw()
    payload = canonical(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "predicateType": "https://kvrun.dev/evidence-bundle/v1",
            "subject": [
                {
                    "annotations": {"size_bytes": len(data)},
                    "digest": {"sha256": hashlib.sha256(data).hexdigest()},
                    "name": name,
                }
                for name, data in sorted(FILES.items())
            ],
            "predicate": {
                "full": False,
                "period": {"from": "2026-01-01", "to": "2026-02-01"},
                "sample": {"records": 25, "seed": "7"},
                "scope": {"deployments": ["d-1"], "workspace": "acme"},
                "software": {"name": "kvrun", "version": "0.1.0"},
            },
        }
    )
    kind = "application/vnd.in-toto+json"
    signature = key.sign(pae(kind.encode(), payload))
    return (
        canonical(
            {
                "format": "kvrun-evidence/v1",
                "public_key": base64.b64encode(public).decode(),
                "envelope": {
                    "payload": base64.b64encode(payload).decode(),
                    "payloadType": kind,
                    "signatures": [
                        {
                            "keyid": hashlib.sha256(public).hexdigest()[:16],
                            "sig": base64.b64encode(signature).decode(),
                        }
                    ],
                },
            }
        )
        + b"\n"
    )


def archive(files: dict[str, bytes]) -> bytes:
    year, month, day = DAY
    date = (year - 1980) << 9 | month << 5 | day
    body, central = b"", b""
    for name, data in sorted(files.items()):
        raw, crc, size = name.encode(), zlib.crc32(data), len(data)
        head = struct.pack(
            "<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, date, crc, size, size, len(raw), 0
        )
        central += struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            *(b"PK\1\2", 3 << 8 | 20, 20, 0, 0, 0, date, crc, size, size, len(raw)),
            *(0, 0, 0, 0, 0o100644 << 16, len(body)),
        )
        central += raw
        body += head + raw + data
    end = struct.pack(
        "<4sHHHHIIH", b"PK\5\6", 0, 0, len(files), len(files), len(central), len(body), 0
    )
    return body + central + end


def draws() -> list[dict[str, object]]:
    frames = [["d-1", "one", 0, 400], ["d-1", "two", 50, 650]]
    places: list[int] = []
    number = 0
    while len(places) < 12:
        digest = hashlib.sha256(f"kvrun-evidence-sample/v1\nspring\n{number}\n".encode()).digest()
        place = int.from_bytes(digest, "big") % 1000
        if place not in places:
            places.append(place)
        number += 1
    drawn = [
        ["d-1", "one", place] if place < 400 else ["d-1", "two", 50 + place - 400]
        for place in sorted(places)
    ]
    return [{"frames": frames, "records": 12, "seed": "spring", "drawn": drawn}]


def main() -> None:
    seed = bytes(range(32))
    signed = manifest(seed)
    whole = archive({**FILES, "manifest.json": signed})
    vectors = {
        "seed": seed.hex(),
        "files": {name: base64.b64encode(data).decode() for name, data in FILES.items()},
        "manifest": signed.decode(),
        "bundle": base64.b64encode(whole).decode(),
        "draws": draws(),
    }
    path = Path(__file__).with_name("evidence-bundle.json")
    path.write_text(json.dumps(vectors, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
