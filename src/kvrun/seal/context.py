"""What a sealed block is bound to: the session it belongs to and its place in the token stream.

The encoding is injective: a constant label, then every field in a fixed order, texts and byte
strings with their length before them, integers and the fingerprint with a fixed width. Two
different identities therefore never share an encoding. ``docs/spec/sealed-block.md`` has the bytes.
"""

import struct
from dataclasses import dataclass

from kvrun.seal.errors import ContextError

CONTEXT_LABEL = b"kvrun/kv-block/v1\x00"
FINGERPRINT_BYTES = 32
MAX_SCOPE_CHARS = 128
MAX_LAYERS_CHARS = 0xFFFF
MAX_BLOCK_HASH_BYTES = 255


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Whose blocks these are, for which model, under which generation of the session key.

    ``workspace``, ``deployment``, ``tenant`` and ``session`` are 1 to 128 characters from ``!`` to
    ``~``. ``fingerprint`` is 32 bytes that stand for everything the KV depends on: weights,
    tokenizer, adapter, data type, memory layout. ``generation`` (0 to 2^32 - 1) counts the keys
    this session has had; it is fixed for the life of a key.

    Raises :class:`ContextError` for a value outside these limits.
    """

    workspace: str
    deployment: str
    tenant: str
    session: str
    fingerprint: bytes
    generation: int

    def __post_init__(self) -> None:
        for name in ("workspace", "deployment", "tenant", "session"):
            _check_text(name, getattr(self, name), MAX_SCOPE_CHARS)
        _check_bytes("fingerprint", self.fingerprint, FINGERPRINT_BYTES, FINGERPRINT_BYTES)
        _check_int("generation", self.generation, 0, _U32)


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """Which block of the session this is.

    ``block_hash``: 1 to 255 bytes, the engine's hash of the whole token chain up to the block's
    end. ``group``: the KV cache group. ``rank`` of ``world_size``: the parallel worker that holds
    it. ``layers``: text that names the layers inside, 1 to 65535 characters from ``!`` to ``~``.
    ``token_start``, ``token_count``: the tokens covered.

    Raises :class:`ContextError` for a value outside these limits.
    """

    block_hash: bytes
    group: int
    rank: int
    world_size: int
    layers: str
    token_start: int
    token_count: int

    def __post_init__(self) -> None:
        _check_bytes("block_hash", self.block_hash, 1, MAX_BLOCK_HASH_BYTES)
        _check_text("layers", self.layers, MAX_LAYERS_CHARS)
        _check_int("group", self.group, 0, _U32)
        _check_int("world_size", self.world_size, 1, _U32)
        _check_int("rank", self.rank, 0, self.world_size - 1)
        _check_int("token_start", self.token_start, 0, _U64)
        _check_int("token_count", self.token_count, 1, _U32)


class ContextEncoder:
    """Encodes block identities of one session; the session's part is encoded once."""

    def __init__(self, session: SessionContext) -> None:
        self._prefix = b"".join(
            (
                CONTEXT_LABEL,
                _text(session.workspace),
                _text(session.deployment),
                _text(session.tenant),
                _text(session.session),
                session.fingerprint,
                _GENERATION.pack(session.generation),
            )
        )

    def encode(self, block: BlockIdentity) -> bytes:
        """The context of ``block``: what a sealed block of it is bound to."""
        block_hash, layers = block.block_hash, block.layers.encode("ascii")
        return self._prefix + struct.pack(
            f"<H{len(block_hash)}sH{len(layers)}sIIIQI",
            len(block_hash),
            block_hash,
            len(layers),
            layers,
            block.group,
            block.rank,
            block.world_size,
            block.token_start,
            block.token_count,
        )


_U32 = 2**32 - 1
_U64 = 2**64 - 1
_LENGTH = struct.Struct("<H")
_GENERATION = struct.Struct("<I")


def _text(value: str) -> bytes:
    return _LENGTH.pack(len(value)) + value.encode("ascii")


def _check_text(name: str, value: object, longest: int) -> None:
    if not isinstance(value, str):
        raise ContextError(f"{name} is {type(value).__name__}, not text.")
    if not 1 <= len(value) <= longest:
        raise ContextError(
            f"{name} has {len(value)} characters.", hint=f"Allowed are 1 to {longest}."
        )
    # Spaces and control characters are outside too: they are where two spellings look the same.
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise ContextError(
            f"{name} holds a character outside printable ASCII: {value[:64]!r}.",
            hint="Allowed are the characters from ! (0x21) to ~ (0x7e).",
        )


def _check_bytes(name: str, value: object, shortest: int, longest: int) -> None:
    if not isinstance(value, bytes):
        raise ContextError(f"{name} is {type(value).__name__}, not bytes.")
    if not shortest <= len(value) <= longest:
        allowed = str(shortest) if shortest == longest else f"{shortest} to {longest}"
        raise ContextError(f"{name} has {len(value)} bytes.", hint=f"Allowed are {allowed}.")


def _check_int(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ContextError(f"{name} is {type(value).__name__}, not an integer.")
    if not lowest <= value <= highest:
        raise ContextError(f"{name} is {value}.", hint=f"Allowed are {lowest} to {highest}.")
