"""What a slot's body holds for each kind of key. Byte-exact format: ``docs/spec/key-slots.md``."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from kvrun.keys.errors import ScopeError, SlotFileError

KEY_BYTES = 32
ID_BYTES = 16
MAX_NAME_BYTES = 128
TENANT_PAYLOAD_BYTES = KEY_BYTES + 1 + MAX_NAME_BYTES
HEADER_BYTES = 64
LASTING_BYTES = 40
"""The start of a record header that no rewrite changes: both ids and the generation."""
SESSION_PAYLOAD_BYTES = 3 * KEY_BYTES + 1 + MAX_NAME_BYTES


class RecordKind(IntEnum):
    """Kinds in ``keys.slots`` and ``upper.slots``; 16 and up belong to roots.

    Kind 7 was a group key of an earlier format.
    """

    STATE = 1
    WORKSPACE_KEY = 2
    DEPLOYMENT_KEY = 3
    TENANT_KEY = 4
    SESSION_KEYS = 5
    TOMBSTONE = 6
    SLOT_KEYS = 8
    MARK = 9


@dataclass(frozen=True, slots=True)
class KeyHeader:
    """The readable 64 bytes before a wrap, all of them authenticated by it.

    ``epoch`` of a table of slot keys is the one that it is wrapped under, and its ``generation``
    the table's number; ``epoch`` of a tenant's or session's keys is the one in which the key of
    their slot was made; both are 0 above those. Times are microseconds since 1970.
    """

    key_id: bytes
    parent_id: bytes
    generation: int
    epoch: int
    created_us: int
    used_us: int

    def pack(self) -> bytes:
        """The header's bytes."""
        return _HEADER.pack(
            self.key_id,
            self.parent_id,
            self.generation,
            self.epoch,
            self.created_us,
            self.used_us,
        )

    @classmethod
    def unpack(cls, packed: bytes) -> "KeyHeader":
        """The header in exactly 64 bytes."""
        return cls(*_HEADER.unpack(packed))


def split_key_record(body: memoryview) -> tuple[bytes, memoryview]:
    """A key record's packed header and its wrap."""
    if len(body) <= _HEADER.size:
        raise SlotFileError(f"A key record has more than {_HEADER.size} bytes, not {len(body)}")
    return bytes(body[: _HEADER.size]), body[_HEADER.size :]


def key_header(body: memoryview) -> KeyHeader:
    """A key record's header."""
    return KeyHeader.unpack(split_key_record(body)[0])


@dataclass(frozen=True, slots=True)
class KeyringState:
    """Which deployment and root the file belongs to, and the generations handed out so far."""

    keyring_id: bytes
    root_id: bytes
    root_persistent: bool
    generation_mark: int
    """Every generation up to this one counts as used."""
    epoch: int
    """The epoch that lived when this was written; 0: none yet."""
    workspace: str
    deployment: str

    def pack(self) -> bytes:
        """The state record's body."""
        names = b"".join(
            struct.pack(">B", len(name)) + name.encode("ascii")
            for name in (self.workspace, self.deployment)
        )
        fixed = _STATE.pack(
            self.keyring_id, self.root_id, self.generation_mark, self.epoch, self.root_persistent
        )
        return fixed + names

    @classmethod
    def unpack(cls, body: memoryview) -> "KeyringState":
        """The state in a record's body. Raises SlotFileError."""
        try:
            keyring_id, root_id, mark, epoch, persistent = _STATE.unpack_from(body)
            rest = bytes(body[_STATE.size :])
            workspace = rest[1 : 1 + rest[0]]
            rest = rest[1 + rest[0] :]
            deployment = rest[1 : 1 + rest[0]]
            return cls(
                keyring_id,
                root_id,
                bool(persistent),
                mark,
                epoch,
                workspace.decode("ascii"),
                deployment.decode("ascii"),
            )
        except (struct.error, IndexError, UnicodeDecodeError):
            raise SlotFileError("The key service's state record is malformed") from None


def pack_tombstone(epoch: int) -> bytes:
    """A destroyed key's place until the epoch it was wrapped under is destroyed too."""
    return _TOMBSTONE.pack(epoch)


def tombstone_epoch(body: memoryview) -> int:
    """The epoch in a tombstone. Raises SlotFileError."""
    if len(body) != _TOMBSTONE.size:
        raise SlotFileError(f"A tombstone has {_TOMBSTONE.size} bytes, not {len(body)}")
    return int(_TOMBSTONE.unpack(body)[0])


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest key in ``keys.slots``, by the file's id and sequence: a file that ends before it
    is an older copy."""

    file_id: bytes
    sequence: int

    def pack(self) -> bytes:
        """The mark's body."""
        return _MARK.pack(self.file_id, self.sequence)

    @classmethod
    def unpack(cls, body: memoryview) -> "Mark":
        """The mark in a record's body. Raises SlotFileError."""
        if len(body) != _MARK.size:
            raise SlotFileError(f"A mark has {_MARK.size} bytes, not {len(body)}")
        return cls(*_MARK.unpack(body))


def put_name(target: memoryview, name: str) -> None:
    """Write an id as length and zero-padded 128 bytes, so that a wrap does not show its length."""
    encoded = name.encode("ascii")
    target[0] = len(encoded)
    target[1 : 1 + len(encoded)] = encoded
    target[1 + len(encoded) :] = bytes(MAX_NAME_BYTES - len(encoded))


def get_name(source: memoryview) -> str:
    """The id that :func:`put_name` wrote."""
    return bytes(source[1 : 1 + source[0]]).decode("ascii")


def check_name(value: str, what: str) -> str:
    """``value`` when it is 1 to 128 printable ASCII characters without spaces, else ScopeError."""
    if not 1 <= len(value) <= MAX_NAME_BYTES or not all("!" <= char <= "~" for char in value):
        raise ScopeError(
            f"The {what} id {value[:140]!r} is not allowed: "
            f"1 to {MAX_NAME_BYTES} printable ASCII characters without spaces"
        )
    return value


_HEADER = struct.Struct(">16s16sQQQQ")
_STATE = struct.Struct(">16s16sQQ?")
_TOMBSTONE = struct.Struct(">Q")
_MARK = struct.Struct(">16sQ")
