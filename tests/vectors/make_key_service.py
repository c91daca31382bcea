"""Make key-service.json: vectors of the key service's format. Uses nothing of kvrun.

Run it in this folder: ``python make_key_service.py``. Needs only Python.
"""

import hashlib
import hmac
import json
import struct
from pathlib import Path

TOKEN = bytes(reversed(range(32)))
SERVER_NONCE = bytes(range(32))
SERVICE = bytes(range(16))
CLIENT_NONCE = bytes(range(32, 64))
NAMES = ("acme", "chat", "acme/chat/box-1")
KEY_ID = b"k" * 16


def pack(value):
    """The few forms of MessagePack that are used, each the shortest."""
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
hello = mac(b"kvrun/key-service/hello/v1", fields(SERVER_NONCE, SERVICE, CLIENT_NONCE, *names))
welcome = mac(b"kvrun/key-service/welcome/v1", fields(SERVER_NONCE, SERVICE, CLIENT_NONCE))
VECTORS = {
    "token": TOKEN.hex(),
    "hello_proof": hello.hex(),
    "welcome_proof": welcome.hex(),
    "frames": {
        "challenge": frame("challenge", 1, SERVER_NONCE, SERVICE),
        "hello": frame("hello", 1, *NAMES, CLIENT_NONCE, hello, [KEY_ID]),
        "welcome": frame("welcome", welcome, []),
        "renew": frame("renew", 7, [[KEY_ID, 1_800_000_000.5]]),
        "acquire": frame("acquire", 8, "alice", "chat-7", True),
        "lent": frame("lent", 8, KEY_ID, 3, 1_800_000_000.0, 1_800_000_000.5, "a" * 32),
        "end": frame("end", 1, [KEY_ID]),
        "ended": frame("ended", 1),
    },
}
Path(__file__).with_name("key-service.json").write_text(json.dumps(VECTORS, indent=1) + "\n")
