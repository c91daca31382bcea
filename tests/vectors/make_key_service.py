"""Make key-service.json: vectors of the key service's format. Uses nothing of kvrun.

Run it in this folder: ``python make_key_service.py``. Needs Python and cryptography.
"""

import hashlib
import hmac
import json
import struct
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TOKEN = bytes(reversed(range(32)))
SERVER_NONCE = bytes(range(32))
SERVICE = bytes(range(16))
CLIENT_NONCE = bytes(range(32, 64))
NAMES = ("acme", "chat", "acme/chat/box-1")
KEY_ID = b"k" * 16
OWNER = b"o" * 16
INSTANCE_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(64, 96)))


def pack(value):
    """The few forms of MessagePack that are used, each the shortest."""
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        assert 0 <= value < 128
        return bytes([value])
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return (
            bytes([0xA0 | len(data)]) if len(data) < 32 else b"\xd9" + bytes([len(data)])
        ) + data
    if isinstance(value, bytes):
        assert len(value) < 256
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, dict):
        assert len(value) < 16
        return bytes([0x80 | len(value)]) + b"".join(
            pack(item) for pair in value.items() for item in pair
        )
    assert isinstance(value, (list, tuple))
    assert len(value) < 16
    return bytes([0x90 | len(value)]) + b"".join(pack(item) for item in value)


def frame(*message):
    payload = pack(list(message))
    return (struct.pack(">I", len(payload)) + payload).hex()


def fields(*parts):
    return b"".join(struct.pack(">H", len(part)) + part for part in parts)


def mac(label, data):
    return hmac.new(TOKEN, label + b"\0" + data, hashlib.sha256).digest()


names = [name.encode() for name in NAMES]
instance = INSTANCE_KEY.public_key().public_bytes_raw()
greeting = fields(SERVER_NONCE, SERVICE, CLIENT_NONCE, *names, instance)
hello = mac(b"kvrun/key-service/hello/v3", greeting)
signature = INSTANCE_KEY.sign(b"kvrun/key-service/instance/v3\0" + greeting)
welcome = mac(b"kvrun/key-service/welcome/v3", fields(SERVER_NONCE, SERVICE, CLIENT_NONCE))
VECTORS = {
    "token": TOKEN.hex(),
    "instance_key": INSTANCE_KEY.private_bytes_raw().hex(),
    "instance": instance.hex(),
    "signature": signature.hex(),
    "hello_proof": hello.hex(),
    "welcome_proof": welcome.hex(),
    "frames": {
        "challenge": frame("challenge", 3, SERVER_NONCE, SERVICE),
        "hello": frame("hello", 3, *NAMES, instance, CLIENT_NONCE, hello, signature, [KEY_ID]),
        "welcome": frame("welcome", welcome, []),
        "renew": frame("renew", 7, [[KEY_ID, 1_800_000_000.5]]),
        "acquire": frame("acquire", 8, "alice", "chat-7", True),
        "lent": frame("lent", 8, KEY_ID, 3, 1_800_000_000.0, 1_800_000_000.5, "a" * 32),
        "destroy": frame("destroy", 9, "e" * 24, ["6b" * 16], [OWNER]),
        "gone": frame("gone", 9, [], [[77, "acme/chat/box-2 (process 77)"]]),
        "settle": frame("settle", 10, "e" * 24, ["acme/chat/box-2 (process 77)"], 30.0),
        "look": frame("settle", 11, "e" * 24, ["acme/chat/box-2 (process 77)"], None),
        "settled": frame(
            "settled",
            10,
            [
                ["acme/chat/box-2 (process 77)", "let_go", [5, 4, 1, ["note"]]],
                ["acme/chat/box-3 (process 78)", "absent", None],
            ],
        ),
        "tenants": frame(
            "tenants",
            12,
            {
                "ids": ["alice"],
                "refs": [],
                "begins": "a",
                "offset": 0,
                "limit": 50,
                "named": False,
            },
        ),
        "tenants_page": frame(
            "tenants_page",
            12,
            {
                "rows": [
                    {
                        "tenant": "",
                        "tenant_ref": "a" * 32,
                        "session_refs": ["b" * 32],
                        "last_used_at": 1_800_000_000.5,
                        "expires_at": 1_800_000_060.5,
                    }
                ],
                "total": 1,
            },
        ),
        "sessions": frame(
            "sessions",
            13,
            {"tenant": "alice", "ref": "", "offset": 0, "limit": 50, "named": True},
        ),
        "sessions_page": frame(
            "sessions_page",
            13,
            {
                "tenant_ref": "a" * 32,
                "rows": [
                    {
                        "tenant": "alice",
                        "session": "chat-7",
                        "tenant_ref": "a" * 32,
                        "session_ref": "b" * 32,
                        "generation": 3,
                        "key_id": "6b" * 16,
                        "created_at": 1_800_000_000.0,
                        "last_used_at": 1_800_000_000.5,
                        "expires_at": 1_800_000_060.5,
                    }
                ],
                "total": 1,
            },
        ),
        "end": frame("end", 1, [KEY_ID], [OWNER]),
        "ended": frame("ended", 1),
        "cleared": frame("cleared", 1, [5, 4, 1, ["note"]]),
    },
}
Path(__file__).with_name("key-service.json").write_text(json.dumps(VECTORS, indent=1) + "\n")
