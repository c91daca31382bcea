"""What the engine's hello says about its KV cache, and what follows for memory."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.instance.protocol import GroupLayout, Hello, ProtocolError
from kvrun.instance.staging import slot_size
from kvrun.seal.context import BlockIdentity
from kvrun.seal.envelope import OVERHEAD_BYTES
from kvrun.seal.errors import ContextError

_FINGERPRINT_BYTES = 32
_MIN_SLOTS = 8
_MAX_SLOTS = 1 << 20
_CELL_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """The shape of one engine's KV cache as all its processes must agree on it.

    ``fingerprint`` names weights, tokenizer, dtype, layout and instruction set; a block sealed
    under another fingerprint does not open.
    """

    fingerprint: bytes
    groups: tuple[GroupLayout, ...]
    world_size: int
    context_window: int
    software: str

    def blocks_in(self, hashes: int, group: int) -> int:
        """Complete blocks of one group among so many block hashes."""
        return hashes // self.groups[group].hashes_per_chunk

    def accepts(self, other: EngineLayout) -> bool:
        """Whether another process of the same engine describes the same cache."""
        return (self.fingerprint, self.groups, self.world_size) == (
            other.fingerprint,
            other.groups,
            other.world_size,
        )


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """One worker's rank and the bytes of its blocks, by group."""

    rank: int
    block_bytes: tuple[int, ...]

    @property
    def cell_bytes(self) -> int:
        """Bytes of a memory cell that holds any sealed block of this worker."""
        largest = max(self.block_bytes) + OVERHEAD_BYTES
        return -(-largest // _CELL_ALIGNMENT) * _CELL_ALIGNMENT

    def staging(self, layout: EngineLayout, context_window: int) -> tuple[int, int]:
        """Slot bytes and slot count for the longest prompt that the deployment accepts."""
        slot = slot_size(max(self.block_bytes))
        blocks = sum(-(-context_window // group.tokens_per_block) for group in layout.groups)
        return slot, max(_MIN_SLOTS, min(_MAX_SLOTS, blocks))


def engine_layout(hello: Hello) -> EngineLayout:
    """The layout in a scheduler's or worker's hello.

    Raises:
        ProtocolError: a value is missing or out of range.
    """
    if len(hello.fingerprint) != _FINGERPRINT_BYTES:
        raise ProtocolError(
            f"the engine's fingerprint has {len(hello.fingerprint)} bytes",
            hint=f"{_FINGERPRINT_BYTES} bytes are required",
        )
    if not 1 <= len(hello.groups) <= 255:
        raise ProtocolError(
            f"the engine announced {len(hello.groups)} KV cache groups", hint="1 to 255 are allowed"
        )
    for number, group in enumerate(hello.groups):
        if group.tokens_per_block < 1 or group.hashes_per_chunk < 1:
            raise ProtocolError(
                f"KV cache group {number} has {group.tokens_per_block} tokens a block and "
                f"{group.hashes_per_chunk} hashes a block",
                hint="both must be at least 1",
            )
        try:
            BlockIdentity(b"-", number, 0, 1, group.layers, 0, group.tokens_per_block)
        except ContextError as error:
            raise ProtocolError(
                f"no block of KV cache group {number} could be sealed: {error.message}",
                hint=error.hint,
            ) from error
    if not 1 <= hello.world_size <= 4096 or hello.context_window < 1:
        raise ProtocolError(
            f"world size {hello.world_size} or context window {hello.context_window} is not valid"
        )
    return EngineLayout(
        fingerprint=hello.fingerprint,
        groups=hello.groups,
        world_size=hello.world_size,
        context_window=hello.context_window,
        software=hello.software,
    )


def worker_shape(hello: Hello, layout: EngineLayout) -> WorkerShape:
    """The rank and block sizes in a worker's hello.

    Raises:
        ProtocolError: a value is missing or out of range.
    """
    if not 0 <= hello.rank < layout.world_size:
        raise ProtocolError(
            f"worker rank {hello.rank} is not valid",
            hint=f"0 to {layout.world_size - 1} are allowed",
        )
    if len(hello.block_bytes) != len(layout.groups) or min(hello.block_bytes, default=0) < 1:
        raise ProtocolError(
            f"worker {hello.rank} announced block sizes {list(hello.block_bytes)} for "
            f"{len(layout.groups)} KV cache groups",
            hint="one positive size a group is required",
        )
    return WorkerShape(rank=hello.rank, block_bytes=hello.block_bytes)
