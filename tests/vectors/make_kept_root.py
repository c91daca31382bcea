"""Make ``kept_root.json``: the folder of a kept root built by hand, byte by byte.

It follows ``docs/spec/kept-root.md`` and shares no code with the package. Its keeper is made of
paper: the key of number ``ref`` is known, and encrypts with AES-256-GCM under the context as
associated data. ``open_by_hand`` does the reverse. Run it from anywhere:

    python tests/vectors/make_kept_root.py
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ROOT, EPOCH = 18, 19


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def derived(label: str, size: int = 32) -> bytes:
    """Fixed bytes in the place of random ones."""
    return hashlib.sha256(label.encode()).digest()[:size]


def context(purpose: bytes, root_id: bytes, epoch: int) -> bytes:
    fields = (b"kept", purpose, root_id, number(epoch, 8))
    return b"kvrun/key-wrap/v1\0" + b"".join(number(len(f), 2) + f for f in fields)


def paper_key(ref: int) -> bytes:
    return derived(f"paper key {ref}")


def wrap(ref: int, aad: bytes, secret: bytes) -> bytes:
    nonce = derived(f"nonce {ref} {aad.hex()}", 12)
    return nonce + AESGCM(paper_key(ref)).encrypt(nonce, secret, aad)


def unwrap(ref: int, aad: bytes, wrapped: bytes) -> bytes:
    return AESGCM(paper_key(ref)).decrypt(wrapped[:12], wrapped[12:], aad)


def header(file_id: bytes) -> bytes:
    fields = b"KVRUNSLT" + number(1, 2) + number(512, 2) + number(0, 4) + file_id
    return fields + hashlib.sha256(fields).digest()


def half(file_id: bytes, slot: int, kind: int, sequence: int, body: bytes) -> bytes:
    """A record in half A of a slot."""
    head = b"KSL1" + number(1, 2) + number(kind, 2) + number(sequence, 8)
    checked = (head + number(len(body), 2) + number(0, 2) + body).ljust(480, b"\0")
    place = number(slot, 4) + b"\0"
    return checked + hashlib.sha256(file_id + place + checked).digest()


def make() -> dict[str, Any]:
    file_id, root_id = derived("file id", 16), derived("root id", 16)
    root_key, epochs = derived("root key"), {6: 8, 7: 9}  # epoch -> number of its key
    records = [(ROOT, root_id + number(9, 8) + wrap(9, context(b"root", root_id, 0), root_key))]
    for epoch, ref in epochs.items():
        wrapped = wrap(ref, context(b"epoch", root_id, epoch), derived(f"epoch {epoch}"))
        records.append((EPOCH, number(epoch, 8) + number(ref, 8) + wrapped))
    content = bytearray(4096 + 4 * 1024)
    content[:64] = header(file_id)
    for slot, (kind, body) in enumerate(records):
        start = 4096 + 1024 * slot
        content[start : start + 512] = half(file_id, slot, kind, slot + 1, body)
    return {
        "keeper_keys": {str(ref): paper_key(ref).hex() for ref in epochs.values()},
        "root_id": root_id.hex(),
        "root_key": root_key.hex(),
        "epochs": {str(epoch): derived(f"epoch {epoch}").hex() for epoch in epochs},
        "header": content[:64].hex(),
        "slots": [content[4096 + 1024 * n :][:512].hex() for n in range(3)],
        "size": len(content),
    }


def open_by_hand(content: bytes) -> dict[str, Any]:
    """Root id, root key and epoch keys (hex) in a ``kept.slots`` whose keeper is of paper."""
    file_id = content[16:32]
    assert content[:64] == header(file_id)
    newest: dict[int, tuple[int, int, bytes]] = {}  # slot -> sequence, kind, body
    for start in range(4096, len(content), 512):
        slot, letter = divmod((start - 4096) // 512, 2)
        raw = content[start : start + 512]
        place = number(slot, 4) + number(letter, 1)
        if raw[480:] != hashlib.sha256(file_id + place + raw[:480]).digest():
            continue
        kind, sequence = int.from_bytes(raw[6:8], "big"), int.from_bytes(raw[8:16], "big")
        body = raw[20 : 20 + int.from_bytes(raw[16:18], "big")]
        newest[slot] = max(newest.get(slot, (0, 0, b"")), (sequence, kind, body))
    bodies = [(kind, body) for _, kind, body in newest.values()]
    ((_, root),) = [record for record in bodies if record[0] == ROOT]
    root_id, ref = root[:16], int.from_bytes(root[16:24], "big")
    epochs = {}
    for kind, body in bodies:
        if kind == EPOCH:
            epoch, key = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big")
            found = unwrap(key, context(b"epoch", root_id, epoch), body[16:])
            epochs[str(epoch)] = found.hex()
    root_key = unwrap(ref, context(b"root", root_id, 0), root[24:])
    return {"root_id": root_id.hex(), "root_key": root_key.hex(), "epochs": epochs}


if __name__ == "__main__":
    Path(__file__).with_name("kept_root.json").write_text(json.dumps(make(), indent=1) + "\n")
