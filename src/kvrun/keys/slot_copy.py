"""A copy of a slot file as it lies in Storage: sealed under a key of its own, which the root wraps.

What it holds is wrapped already; sealed as a whole it shows a reader of Storage neither names nor
times of keys. Byte-exact format: ``docs/spec/key-copy.md``.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import SlotFileError, WrapError
from kvrun.keys.locked import LockedBuffer
from kvrun.keys.root import KEY_BYTES, Root
from kvrun.keys.wrap import NONCE_BYTES, context

_FILE_ID = slice(16, 32)
_HEAD = struct.Struct("<4sBBH")
_MAGIC = b"KVKC"
_FORMAT = 1
_AES_256_GCM = 1


def seal_copy(
    slots: bytes,
    root: Root,
    workspace: str,
    deployment: str,
    *,
    random_into: RandomInto = getrandom,
) -> bytes:
    """Seals a slot file's bytes. Raises RootError, also where the root cannot be reached."""
    bound = _bound(workspace, deployment)
    nonce = bytearray(NONCE_BYTES)
    random_into(memoryview(nonce))
    with LockedBuffer(KEY_BYTES) as key:
        random_into(key.view)
        wrapped = root.wrap(bound, key.view)
        head = _HEAD.pack(_MAGIC, _FORMAT, _AES_256_GCM, len(wrapped)) + wrapped + nonce
        return head + AESGCM(key.view).encrypt(bytes(nonce), slots, head + bound)


def open_copy(copy: bytes, root: Root, workspace: str, deployment: str) -> bytes:
    """The slot file of a copy.

    Raises SlotFileError for what is no copy, WrapError for one of another root or deployment, or
    one that was changed.
    """
    if len(copy) < _HEAD.size:
        raise SlotFileError("a copy of key slots is cut short")
    magic, version, algorithm, wrapped_bytes = _HEAD.unpack_from(copy)
    if (magic, version, algorithm) != (_MAGIC, _FORMAT, _AES_256_GCM):
        raise SlotFileError("a copy of key slots has an unknown format")
    begin = _HEAD.size + wrapped_bytes + NONCE_BYTES
    head, sealed = copy[:begin], memoryview(copy)[begin:]
    bound = _bound(workspace, deployment)
    with LockedBuffer(KEY_BYTES) as key:
        root.unwrap_into(bound, head[_HEAD.size : _HEAD.size + wrapped_bytes], key.view)
        try:
            return AESGCM(key.view).decrypt(head[-NONCE_BYTES:], sealed, head + bound)
        except (InvalidTag, ValueError):
            raise WrapError("a copy of key slots was changed, or cut short") from None


def file_id_of(slots: bytes) -> bytes:
    """The id in a slot file's header, which it got when it was made.

    Raises SlotFileError where there is none.
    """
    if len(slots) < _FILE_ID.stop:
        raise SlotFileError("a slot file is cut short")
    return slots[_FILE_ID]


def _bound(workspace: str, deployment: str) -> bytes:
    return context(b"slot-copy", workspace.encode(), deployment.encode())
