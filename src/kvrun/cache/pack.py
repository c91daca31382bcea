"""The pack: one object of Storage that holds many sealed blocks of one session. Pure.

Sealed blocks one after another, then a sealed index, then a footer of fixed size. The index is
sealed and opened by the caller, who has the keys; bound to it is what :func:`index_context` says.
The byte format is specified in ``docs/spec/pack.md``.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kvrun.cache.errors import PackFormatError

NAME_BYTES = 16
FINGERPRINT_BYTES = 32
FOOTER_BYTES = 32
MAX_ENTRIES = 2**15 - 1
MAX_PACK_BYTES = 2**31
"""A pack, and so every offset in it, is below this."""
ENTRY_BYTES = NAME_BYTES + 4
INDEX_HEAD_BYTES = 52
MAX_INDEX_BYTES = INDEX_HEAD_BYTES + MAX_ENTRIES * ENTRY_BYTES
_SEAL_ROOM = 4096
_FOOTER = struct.Struct("<4sBBHIIQQ")
_INDEX_HEAD = struct.Struct("<4sII32sQ")
_SIZE = struct.Struct("<I")
_GENERATION = struct.Struct("<I")
_MAGIC = b"KVP1"
_INDEX_MAGIC = b"KVPI"
_FORMAT = 1
_CONTEXT_LABEL = b"kvrun/pack-index/v1\x00"
_PACK_NAME = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})\.kvp")


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One block of a pack: its keyed name and its sealed bytes."""

    name: bytes
    size: int


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What a pack holds, in the order in which it holds it.

    ``fingerprint`` is that of the model whose blocks these are, ``created`` the time in
    microseconds since 1970.
    """

    fingerprint: bytes
    created: int
    entries: tuple[PackEntry, ...]

    @property
    def blocks_bytes(self) -> int:
        """The bytes of all blocks together: where the sealed index begins."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True, slots=True)
class PackFooter:
    """The end of a pack: where its sealed index is. Nothing of it is proven until that opens."""

    generation: int
    index_bytes: int
    blocks_bytes: int


def pack_name(random: bytes, blocks: int) -> str:
    """The name of a new pack: 16 random bytes and how many blocks it holds."""
    if len(random) != 16 or not 1 <= blocks <= MAX_ENTRIES:
        raise ValueError(f"{len(random)} random bytes and {blocks} blocks do not name a pack")
    return f"{random.hex()}-{blocks}.kvp"


def blocks_in(name: str) -> int | None:
    """How many blocks the pack of this name says it holds; None where it is no pack's name."""
    match = _PACK_NAME.fullmatch(name)
    blocks = int(match[2]) if match else 0
    return blocks if 1 <= blocks <= MAX_ENTRIES else None


def index_context(
    workspace: str, deployment: str, tenant: str, session: str, generation: int, name: str
) -> bytes:
    """What the sealed index of the pack ``name`` is bound to. Injective."""
    texts = (workspace, deployment, tenant, session, name)
    return b"".join(
        (_CONTEXT_LABEL, _GENERATION.pack(generation), *(_prefixed(text) for text in texts))
    )


def encode_index(index: PackIndex) -> bytes:
    """The plaintext of an index. Raises ValueError for one that is outside the limits."""
    entries = index.entries
    if not 1 <= len(entries) <= MAX_ENTRIES or len(index.fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"{len(entries)} blocks; a pack holds 1 to {MAX_ENTRIES}")
    if any(len(entry.name) != NAME_BYTES or entry.size < 1 for entry in entries):
        raise ValueError("a block of a pack has a name of 16 bytes and at least one byte")
    if index.blocks_bytes >= MAX_PACK_BYTES:
        raise ValueError(f"{index.blocks_bytes} bytes; a pack holds less than {MAX_PACK_BYTES}")
    head = _INDEX_HEAD.pack(_INDEX_MAGIC, _FORMAT, len(entries), index.fingerprint, index.created)
    return head + b"".join(entry.name + _SIZE.pack(entry.size) for entry in entries)


def decode_index(plain: bytes | memoryview, *, name: str, footer: PackFooter) -> PackIndex:
    """An index that opened. Raises PackFormatError unless it fits its pack's name and footer."""
    if len(plain) < INDEX_HEAD_BYTES:
        raise PackFormatError(f"the index of {name} is too short: {len(plain)} bytes")
    magic, version, count, fingerprint, created = _INDEX_HEAD.unpack_from(plain)
    if magic != _INDEX_MAGIC or version != _FORMAT:
        raise PackFormatError(f"the index of {name} has an unknown format")
    if count != blocks_in(name) or len(plain) != INDEX_HEAD_BYTES + count * ENTRY_BYTES:
        raise PackFormatError(f"the index of {name} is not as long as its blocks need")
    entries = []
    for at in range(INDEX_HEAD_BYTES, len(plain), ENTRY_BYTES):
        (size,) = _SIZE.unpack_from(plain, at + NAME_BYTES)
        if not size:
            raise PackFormatError(f"the index of {name} lists an empty block")
        entries.append(PackEntry(bytes(plain[at : at + NAME_BYTES]), size))
    index = PackIndex(fingerprint, created, tuple(entries))
    if index.blocks_bytes != footer.blocks_bytes:
        raise PackFormatError(f"the index of {name} lists other bytes than the pack holds")
    return index


def encode_footer(footer: PackFooter) -> bytes:
    """The last bytes of a pack."""
    return _FOOTER.pack(
        _MAGIC, _FORMAT, 1, 0, footer.generation, footer.index_bytes, footer.blocks_bytes, 0
    )


def parse_footer(data: bytes | memoryview, *, size_bytes: int) -> PackFooter:
    """The footer of a pack of ``size_bytes`` whose last bytes are ``data``.

    Raises PackFormatError where it cannot be the whole end of a whole pack.
    """
    if len(data) < FOOTER_BYTES or size_bytes > MAX_PACK_BYTES + MAX_INDEX_BYTES + _SEAL_ROOM:
        raise PackFormatError(f"an object of {size_bytes} bytes is no pack")
    magic, version, algorithm, flags, generation, index_bytes, blocks_bytes, rest = (
        _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    )
    if magic != _MAGIC or (version, algorithm, flags, rest) != (_FORMAT, 1, 0, 0):
        raise PackFormatError("an object does not end as a pack does")
    if index_bytes > MAX_INDEX_BYTES + _SEAL_ROOM:
        raise PackFormatError(f"an index of {index_bytes} bytes is too long")
    if not blocks_bytes or blocks_bytes + index_bytes + FOOTER_BYTES != size_bytes:
        raise PackFormatError("a pack is not as long as its footer says")
    return PackFooter(generation, index_bytes, blocks_bytes)


def build_pack(blocks: Sequence[memoryview], sealed_index: bytes, *, generation: int) -> bytearray:
    """The bytes of a pack, in one buffer."""
    blocks_bytes = sum(len(block) for block in blocks)
    pack = bytearray(blocks_bytes + len(sealed_index) + FOOTER_BYTES)
    at = 0
    for block in blocks:
        pack[at : at + len(block)] = block
        at += len(block)
    pack[at : at + len(sealed_index)] = sealed_index
    pack[-FOOTER_BYTES:] = encode_footer(PackFooter(generation, len(sealed_index), blocks_bytes))
    return pack


def _prefixed(text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack("<H", len(data)) + data
