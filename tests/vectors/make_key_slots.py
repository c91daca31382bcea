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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HALF, UPPER_HALF, PAGE = 512, 5632, 4096
ROOT_KEY, EPOCH_KEY = 16, 17
STATE, WORKSPACE_KEY, DEPLOYMENT_KEY, TENANT_KEY, SESSION_KEYS, SLOT_KEYS, MARK = (
    1,
    2,
    3,
    4,
    5,
    8,
    9,
)
TABLE = 128


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


def file_header(file_id: bytes, size: int) -> bytes:
    fields = b"KVRUNSLT" + u16(1) + u16(size) + u32(0) + file_id
    return (fields + sha256(fields)).ljust(PAGE, b"\0")


def half_bytes(
    file_id: bytes, slot: int, half: int, kind: int, sequence: int, body: bytes, size: int
) -> bytes:
    head = b"KSL1" + u16(1) + u16(kind) + u64(sequence) + u16(len(body)) + u16(0)
    checked = (head + body).ljust(size - 32, b"\0")
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

    def epoch_key(self, e: bytes, epoch: int, deployment_key: bytes, its_id: bytes) -> bytes:
        """What tables of slot keys are wrapped under."""
        info = b"kvrun/epoch-key/v1\0" + lp(u64(epoch), its_id)
        return hkdf32(e + deployment_key, self.keyring_id, info)

    def record_key(self, parent: bytes, parent_id: bytes) -> bytes:
        """What the inner wrap of a parent's records is under."""
        info = b"kvrun/record-key/v1\0" + lp(parent_id)
        return hkdf32(parent, self.keyring_id, info)

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


Split = tuple[bytes, bytes, bytes]


def split(body: bytes) -> Split:
    """A key record's header, nonce and ciphertext."""
    return body[:64], body[64:76], body[76:]


Record = tuple[int, int, bytes]


def open_by_hand(root_file: bytes, upper_file: bytes, keys_file: bytes) -> list[dict[str, Any]]:
    """Every session in a key folder, from the three files alone."""
    return open_all(root_file, current_records(upper_file), current_records(keys_file))


def open_all(root_file: bytes, upper: list[Record], records: list[Record]) -> list[dict[str, Any]]:
    """Every session that the root's present keys can reach through any of the records.

    The records may be of any age and many of one slot: each key that any of them yields is tried
    on all others. This is everything that someone with all copies and the root can do.
    """
    root_key, epochs = b"", {}
    for _, kind, body in current_records(root_file):
        if kind == ROOT_KEY:
            root_key = body[16:]
    for _, kind, body in current_records(root_file):
        if kind == EPOCH_KEY:
            aad = wrap_aad(b"epoch", body[:8])
            number = int.from_bytes(body[:8], "big")
            epochs[number] = AESGCM(root_key).decrypt(body[8:20], body[20:], aad)

    def of_kind(wanted: int) -> list[tuple[int, Split]]:
        return [(slot, split(body)) for slot, kind, body in upper + records if kind == wanted]

    state = next(body for _, kind, body in records if kind == STATE)
    names = state[49:]
    workspace, rest = names[1 : 1 + names[0]], names[1 + names[0] :]
    ring = Ring(state[:16], workspace.decode(), rest[1 : 1 + rest[0]].decode())

    def unwrap(key: bytes, kind: int, record: Split) -> bytes | None:
        header, nonce, sealed = record
        try:
            return AESGCM(key).decrypt(nonce, sealed, ring.aad(kind, header))
        except InvalidTag:
            return None

    def unwrap_both(outer: bytes, parent: bytes, kind: int, record: Split) -> bytes | None:
        inner = unwrap(outer, kind, record)
        if inner is None:
            return None
        aad = ring.aad(kind, record[0][:40])
        key = ring.record_key(parent, record[0][16:32])
        return AESGCM(key).decrypt(inner[:12], inner[12:], aad)

    workspace_keys = {unwrap(root_key, WORKSPACE_KEY, top) for _, top in of_kind(WORKSPACE_KEY)}
    (workspace_key,) = workspace_keys - {None}
    assert workspace_key is not None
    _, middle = of_kind(DEPLOYMENT_KEY)[0]
    deployment_key = unwrap(workspace_key, DEPLOYMENT_KEY, middle)
    assert deployment_key is not None
    slot_keys: dict[int, set[bytes]] = {}
    for _, record in of_kind(SLOT_KEYS):
        first = int.from_bytes(record[0][32:40], "big") * TABLE
        for epoch, e in epochs.items():
            key = ring.epoch_key(e, epoch, deployment_key, middle[0][:16])
            table = unwrap(key, SLOT_KEYS, record)
            for number in range(TABLE if table else 0):
                assert table is not None
                entry = table[number * 40 : number * 40 + 40]
                slot_keys.setdefault(first + number, set()).add(entry[8:])
    tenants: dict[bytes, tuple[str, bytes]] = {}
    for slot, record in of_kind(TENANT_KEY):
        for slot_key in slot_keys.get(slot, ()):
            payload = unwrap_both(slot_key, deployment_key, TENANT_KEY, record)
            if payload is not None:
                name = payload[33 : 33 + payload[32]].decode()
                tenants[record[0][:16]] = (name, payload[:32])
    opened: dict[str, dict[str, Any]] = {}
    for slot, record in of_kind(SESSION_KEYS):
        header = record[0]
        tenant, kek = tenants.get(header[16:32], ("", b""))
        for slot_key in slot_keys.get(slot, ()) if kek else ():
            payload = unwrap_both(slot_key, kek, SESSION_KEYS, record)
            if payload is not None:
                session = payload[97 : 97 + payload[96]].decode()
                generation = int.from_bytes(header[32:40], "big")
                facts = ring.outputs(tenant, session, kek, payload)
                key_id = header[:16].hex()
                opened[key_id] = {**facts, "generation": generation, "key_id": key_id}
    return list(opened.values())


def written_record(file_id: bytes, offset: int, data: bytes, size: int = HALF) -> Record | None:
    """(slot, kind, body) of one valid half that was written at an offset of a slot file."""
    slot, within = divmod(offset - PAGE, 2 * size)
    if offset < PAGE or len(data) != size or data[:4] != b"KSL1":
        return None
    if sha256(file_id + u32(slot) + u8(within // size) + data[:-32]) != data[-32:]:
        return None
    length = int.from_bytes(data[16:18], "big")
    return slot, int.from_bytes(data[6:8], "big"), data[20 : 20 + length]


def current_records(file: bytes) -> list[Record]:
    """(slot, kind, body) of each slot's valid half with the higher sequence."""
    file_id, size = file[16:32], int.from_bytes(file[10:12], "big")
    found = []
    for slot in range((len(file) - PAGE) // (2 * size)):
        best: tuple[int, int, bytes] | None = None
        for half in (0, 1):
            start = PAGE + slot * 2 * size + half * size
            raw = file[start : start + size]
            if raw[:4] != b"KSL1":
                continue
            if sha256(file_id + u32(slot) + u8(half) + raw[:-32]) != raw[-32:]:
                continue
            length = int.from_bytes(raw[16:18], "big")
            sequence = int.from_bytes(raw[8:16], "big")
            record = (sequence, int.from_bytes(raw[6:8], "big"), raw[20 : 20 + length])
            best = record if best is None or record > best else best
        if best:
            found.append((slot, *best[1:]))
    return found


def make() -> dict[str, Any]:
    """A folder with one tenant of two sessions at epoch 3; one has an older half beside it."""

    def fixed(label: str, length: int) -> bytes:
        return hashlib.shake_256(b"kvrun key slot vector: " + label.encode()).digest(length)

    root_file, keys_file = fixed("root file id", 16), fixed("keys file id", 16)
    upper_file = fixed("upper file id", 16)
    root_id, root_key, e = fixed("root id", 16), fixed("root key", 32), fixed("epoch key", 32)
    ring = Ring(fixed("keyring id", 16), "acme", "chat")
    epoch, made_in, created, used = 3, 2, 1_800_000_000_000_000, 1_800_000_123_456_789
    ids = {n: fixed(n + " id", 16) for n in ("workspace", "deployment", "tenant", "table")}
    keys = {label: fixed(label + " key", 32) for label in ids}
    slot_keys = [fixed(f"slot {slot} key", 32) for slot in range(TABLE)]

    def wrapped(key: bytes, aad: bytes, secret: bytes, label: str) -> bytes:
        nonce = fixed(label + " nonce", 12)
        return nonce + AESGCM(key).encrypt(nonce, secret, aad)

    def header(key_id: bytes, parent_id: bytes, generation: int, at: int) -> bytes:
        return key_id + parent_id + u64(generation) + u64(at) + u64(created) + u64(used)

    def record(kind: int, key: bytes, head: bytes, secret: bytes, label: str) -> bytes:
        return head + wrapped(key, ring.aad(kind, head), secret, label)

    def covered(
        slot: int, kind: int, parent: str, head: bytes, payload: bytes, label: str
    ) -> bytes:
        key = ring.record_key(keys[parent], ids[parent])
        inner = wrapped(key, ring.aad(kind, head[:40]), payload, label + " inner")
        return record(kind, slot_keys[slot], head, inner, label)

    names = u8(4) + b"acme" + u8(4) + b"chat"
    state = ring.keyring_id + root_id + u64(1004) + u64(epoch) + u8(1) + names
    epoch_wrap = ring.epoch_key(e, epoch, keys["deployment"], ids["deployment"])
    table_head = header(ids["table"], ids["deployment"], 0, epoch)
    entries = b"".join(u64(made_in) + key for key in slot_keys)
    table = record(SLOT_KEYS, epoch_wrap, table_head, entries, "table")
    top_head = header(ids["workspace"], root_id, 0, 0)
    top = record(WORKSPACE_KEY, root_key, top_head, keys["workspace"], "workspace")
    middle_head = header(ids["deployment"], ids["workspace"], 0, 0)
    middle = record(
        DEPLOYMENT_KEY, keys["workspace"], middle_head, keys["deployment"], "deployment"
    )
    tenant_head = header(ids["tenant"], ids["deployment"], 0, made_in)
    tenant_payload = keys["tenant"] + named("alice")
    tenant = covered(1, TENANT_KEY, "deployment", tenant_head, tenant_payload, "tenant")
    slots: list[list[tuple[int, int, int, bytes]]] = [
        [(0, STATE, 1, state)],
        [(0, TENANT_KEY, 4, tenant)],
    ]
    upper: list[list[tuple[int, int, int, bytes]]] = [
        [(0, STATE, 1, state)],
        [(0, WORKSPACE_KEY, 2, top)],
        [(0, DEPLOYMENT_KEY, 3, middle)],
        [(0, MARK, 5, keys_file + u64(11))],
        [(1, SLOT_KEYS, 4, table)],
    ]
    sessions = []
    for number, name in enumerate(("one", "x" * 128)):
        key_id = fixed(f"session {name} id", 16)
        payload = fixed(f"session {name} keys", 96) + named(name)
        head = header(key_id, ids["tenant"], 4 + number, made_in)
        body = covered(len(slots), SESSION_KEYS, "tenant", head, payload, name)
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
            "root.slots": encode_file(root_file, root_slots, HALF),
            "upper.slots": encode_file(upper_file, upper, UPPER_HALF),
            "keys.slots": encode_file(keys_file, slots, HALF),
        },
        "sessions": sessions,
    }


def encode_file(
    file_id: bytes, slots: list[list[tuple[int, int, int, bytes]]], size: int
) -> list[dict[str, Any]]:
    """The file as pieces at offsets; everything between them is zeros."""
    pieces = [{"offset": 0, "hex": file_header(file_id, size).rstrip(b"\0").hex()}]
    for slot, halves in enumerate(slots):
        for half, kind, sequence, body in halves:
            raw = half_bytes(file_id, slot, half, kind, sequence, body, size)
            pieces.append({"offset": PAGE + (2 * slot + half) * size, "hex": raw.hex()})
    pieces.append({"offset": PAGE + 2 * len(slots) * size, "hex": ""})
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
