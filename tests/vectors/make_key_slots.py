"""Make ``key_slots.json``: a whole key root and key folder built by hand, byte by byte.

It follows ``docs/spec/key-slots.md`` and shares no code with the package. ``open_by_hand`` does the
reverse: it opens every session of a key folder that the package wrote. Run it from anywhere:

    python tests/vectors/make_key_slots.py
"""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HALF, SLOT, PAGE = 512, 1024, 4096
ROOT_KEY, EPOCH_KEY = 16, 17
STATE, WORKSPACE_KEY, DEPLOYMENT_KEY, TENANT_KEY, SESSION_KEYS = 1, 2, 3, 4, 5


def u8(value: int) -> bytes:
    return value.to_bytes(1, "big")


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def lp(*fields: bytes) -> bytes:
    return b"".join(u16(len(field)) + field for field in fields)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def hkdf32(material: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256 and 32 bytes of output: one block of expansion."""
    return mac(mac(salt, material), info + b"\x01")


def named(name: str) -> bytes:
    raw = name.encode("ascii")
    return u8(len(raw)) + raw.ljust(128, b"\0")


def file_header(file_id: bytes) -> bytes:
    fields = b"KVRUNSLT" + u16(1) + u16(HALF) + u32(0) + file_id
    return (fields + sha256(fields)).ljust(PAGE, b"\0")


def half_bytes(
    file_id: bytes, slot: int, half: int, kind: int, sequence: int, body: bytes
) -> bytes:
    head = b"KSL1" + u16(1) + u16(kind) + u64(sequence) + u16(len(body)) + u16(0)
    checked = (head + body).ljust(HALF - 32, b"\0")
    return checked + sha256(file_id + u32(slot) + u8(half) + checked)


def wrap_aad(*fields: bytes) -> bytes:
    return b"kvrun/key-wrap/v1\0" + lp(*fields)


class Ring:
    """The derivations of one key ring."""

    def __init__(self, keyring_id: bytes, workspace: str, deployment: str) -> None:
        self.keyring_id = keyring_id
        self.workspace = workspace.encode()
        self.deployment = deployment.encode()

    def aad(self, kind: int, header: bytes) -> bytes:
        return wrap_aad(u16(kind), self.keyring_id, self.workspace, self.deployment, header)

    def epoch_key(self, purpose: bytes, e: bytes, epoch: int, parent: bytes, pid: bytes) -> bytes:
        info = b"kvrun/epoch-key/v1\0" + lp(purpose, u64(epoch), pid)
        return hkdf32(e + parent, self.keyring_id, info)

    def outputs(self, tenant: str, session: str, kek: bytes, payload: bytes) -> dict[str, str]:
        dek, seed, name_key = payload[:32], payload[32:64], payload[64:96]
        t, s = tenant.encode(), session.encode()
        where = (self.workspace, self.deployment, t)
        salt = mac(seed, lp(self.deployment, t, s))
        return {
            "tenant": tenant,
            "session": session,
            "dek": dek.hex(),
            "salt": base64.urlsafe_b64encode(salt).decode().rstrip("="),
            "tenant_ref": mac(kek, lp(b"kvrun/tenant-ref/v1", *where))[:16].hex(),
            "session_ref": mac(name_key, lp(b"kvrun/session-ref/v1", *where, s))[:16].hex(),
            "block_name_of_6162": mac(name_key, lp(b"kvrun/block-name/v1") + b"ab")[:16].hex(),
        }


def open_by_hand(root_file: bytes, keys_file: bytes) -> list[dict[str, Any]]:
    """Every session in a key folder, from the two files alone."""
    root_key, epochs = b"", {}
    for kind, body in current_records(root_file):
        if kind == ROOT_KEY:
            root_key = body[16:]
    for kind, body in current_records(root_file):
        if kind == EPOCH_KEY:
            aad = wrap_aad(b"epoch", body[:8])
            number = int.from_bytes(body[:8], "big")
            epochs[number] = AESGCM(root_key).decrypt(body[8:20], body[20:], aad)
    records = current_records(keys_file)

    def of_kind(wanted: int) -> list[tuple[bytes, bytes, bytes]]:
        return [(b[:80], b[80:92], b[92:]) for kind, b in records if kind == wanted]

    state = next(body for kind, body in records if kind == STATE)
    names = state[41:]
    workspace, rest = names[1 : 1 + names[0]], names[1 + names[0] :]
    ring = Ring(state[:16], workspace.decode(), rest[1 : 1 + rest[0]].decode())

    def unwrap(key: bytes, kind: int, record: tuple[bytes, bytes, bytes]) -> bytes:
        header, nonce, sealed = record
        return AESGCM(key).decrypt(nonce, sealed, ring.aad(kind, header))

    (top,) = of_kind(WORKSPACE_KEY)
    (middle,) = of_kind(DEPLOYMENT_KEY)
    workspace_key = unwrap(root_key, WORKSPACE_KEY, top)
    deployment_key = unwrap(workspace_key, DEPLOYMENT_KEY, middle)
    tenants = {}
    for record in of_kind(TENANT_KEY):
        epoch = int.from_bytes(record[0][56:64], "big")
        key = ring.epoch_key(b"wrap", epochs[epoch], epoch, deployment_key, middle[0][:16])
        payload = unwrap(key, TENANT_KEY, record)
        name = payload[33 : 33 + payload[32]].decode()
        tenants[record[0][:16]] = (name, payload[:32])
    found = []
    for record in of_kind(SESSION_KEYS):
        header = record[0]
        epoch = int.from_bytes(header[56:64], "big")
        tenant, kek = tenants[header[16:32]]
        key = ring.epoch_key(b"wrap", epochs[epoch], epoch, kek, header[16:32])
        payload = unwrap(key, SESSION_KEYS, record)
        session = payload[97 : 97 + payload[96]].decode()
        generation = int.from_bytes(header[48:56], "big")
        facts: dict[str, Any] = dict(ring.outputs(tenant, session, kek, payload))
        found.append({**facts, "generation": generation, "key_id": header[:16].hex()})
    return found


def current_records(file: bytes) -> list[tuple[int, bytes]]:
    """(kind, body) of each slot's valid half with the higher sequence."""
    file_id = file[16:32]
    found = []
    for slot in range((len(file) - PAGE) // SLOT):
        best: tuple[int, int, bytes] | None = None
        for half in (0, 1):
            start = PAGE + slot * SLOT + half * HALF
            raw = file[start : start + HALF]
            if raw[:4] != b"KSL1":
                continue
            if sha256(file_id + u32(slot) + u8(half) + raw[:-32]) != raw[-32:]:
                continue
            length = int.from_bytes(raw[16:18], "big")
            sequence = int.from_bytes(raw[8:16], "big")
            record = (sequence, int.from_bytes(raw[6:8], "big"), raw[20 : 20 + length])
            best = record if best is None or record > best else best
        if best:
            found.append(best[1:])
    return found


def make() -> dict[str, Any]:
    """A folder with one tenant of two sessions at epoch 3; one has an older half beside it."""

    def fixed(label: str, length: int) -> bytes:
        return hashlib.shake_256(b"kvrun key slot vector: " + label.encode()).digest(length)

    root_file, keys_file = fixed("root file id", 16), fixed("keys file id", 16)
    root_id, root_key, e = fixed("root id", 16), fixed("root key", 32), fixed("epoch key", 32)
    ring = Ring(fixed("keyring id", 16), "acme", "chat")
    epoch, created, used = 3, 1_800_000_000_000_000, 1_800_000_123_456_789

    def wrapped(key: bytes, aad: bytes, secret: bytes, label: str) -> bytes:
        nonce = fixed(label + " nonce", 12)
        return nonce + AESGCM(key).encrypt(nonce, secret, aad)

    def record(
        kind: int,
        key: bytes,
        ids: tuple[bytes, bytes, bytes],
        numbers: tuple[int, int],
        secret: bytes,
        label: str,
    ) -> bytes:
        generation, at = numbers
        header = b"".join(ids) + u64(generation) + u64(at) + u64(created) + u64(used)
        return header + wrapped(key, ring.aad(kind, header), secret, label)

    ids = {label: fixed(label + " id", 16) for label in ("workspace", "deployment", "tenant")}
    keys = {label: fixed(label + " key", 32) for label in ids}
    no_tag = bytes(16)
    index = ring.epoch_key(b"index", e, epoch, keys["deployment"], ids["deployment"])
    tenant_wrap = ring.epoch_key(b"wrap", e, epoch, keys["deployment"], ids["deployment"])
    session_wrap = ring.epoch_key(b"wrap", e, epoch, keys["tenant"], ids["tenant"])
    tenant_tag = mac(index, lp(b"tenant", b"alice"))[:16]
    state = ring.keyring_id + root_id + u64(1004) + u8(1) + u8(4) + b"acme" + u8(4) + b"chat"
    slots: list[list[tuple[int, int, int, bytes]]] = [
        [(0, STATE, 1, state)],
        [
            (
                0,
                WORKSPACE_KEY,
                2,
                record(
                    WORKSPACE_KEY,
                    root_key,
                    (ids["workspace"], root_id, no_tag),
                    (0, 0),
                    keys["workspace"],
                    "workspace",
                ),
            )
        ],
        [
            (
                0,
                DEPLOYMENT_KEY,
                3,
                record(
                    DEPLOYMENT_KEY,
                    keys["workspace"],
                    (ids["deployment"], ids["workspace"], no_tag),
                    (0, 0),
                    keys["deployment"],
                    "deployment",
                ),
            )
        ],
        [
            (
                0,
                TENANT_KEY,
                4,
                record(
                    TENANT_KEY,
                    tenant_wrap,
                    (ids["tenant"], ids["deployment"], tenant_tag),
                    (0, epoch),
                    keys["tenant"] + named("alice"),
                    "tenant",
                ),
            )
        ],
    ]
    sessions = []
    for number, name in enumerate(("one", "x" * 128)):
        key_id = fixed(f"session {name} id", 16)
        payload = fixed(f"session {name} keys", 96) + named(name)
        tag = mac(index, lp(b"session", b"alice", name.encode()))[:16]
        body = record(
            SESSION_KEYS,
            session_wrap,
            (key_id, ids["tenant"], tag),
            (4 + number, epoch),
            payload,
            name,
        )
        halves = [(number, SESSION_KEYS, 10 + number, body)]
        if number:  # an older, valid half that must lose
            halves.append((0, SESSION_KEYS, 5, body[:40] + bytes(len(body) - 40)))
        slots.append(halves)
        facts: dict[str, Any] = dict(ring.outputs("alice", name, keys["tenant"], payload))
        sessions.append({**facts, "generation": 4 + number, "key_id": key_id.hex()})
    epoch_body = u64(epoch) + wrapped(root_key, wrap_aad(b"epoch", u64(epoch)), e, "epoch")
    root_slots = [
        [(0, ROOT_KEY, 1, root_id + root_key)],
        [(1, EPOCH_KEY, 6, epoch_body)],
    ]
    return {
        "workspace": "acme",
        "deployment": "chat",
        "now": 1_800_000_200,
        "files": {
            "root.slots": encode_file(root_file, root_slots),
            "keys.slots": encode_file(keys_file, slots),
        },
        "sessions": sessions,
    }


def encode_file(
    file_id: bytes, slots: list[list[tuple[int, int, int, bytes]]]
) -> list[dict[str, Any]]:
    """The file as pieces at offsets; everything between them is zeros."""
    pieces = [{"offset": 0, "hex": file_header(file_id).rstrip(b"\0").hex()}]
    for slot, halves in enumerate(slots):
        for half, kind, sequence, body in halves:
            raw = half_bytes(file_id, slot, half, kind, sequence, body)
            pieces.append({"offset": PAGE + slot * SLOT + half * HALF, "hex": raw.hex()})
    pieces.append({"offset": PAGE + len(slots) * SLOT, "hex": ""})
    return pieces


def file_bytes(pieces: list[dict[str, Any]]) -> bytes:
    """The whole file out of its pieces."""
    content = bytearray(pieces[-1]["offset"])
    for piece in pieces:
        raw = bytes.fromhex(piece["hex"])
        content[piece["offset"] : piece["offset"] + len(raw)] = raw
    return bytes(content)


if __name__ == "__main__":
    target = Path(__file__).with_name("key_slots.json")
    target.write_text(json.dumps(make(), indent=1) + "\n")
