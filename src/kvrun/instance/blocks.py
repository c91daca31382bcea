"""A request's view of its session: the names and contexts of its blocks."""

from __future__ import annotations

import struct

from kvrun.instance.layout import EngineLayout
from kvrun.keys.session import SessionKeys
from kvrun.seal.context import BlockIdentity, ContextEncoder, SessionContext

_NAME_HEAD = struct.Struct(">HHH")
_NAME_LABEL = b"kvrun/block-name/v1\x00"


class SessionBlocks:
    """Names and AAD contexts of one session's blocks under one engine layout.

    A name is what Storage and the index see: an HMAC under the session's name key over the
    model fingerprint, group, rank and block hash. A context is what the block is bound to.
    """

    def __init__(self, keys: SessionKeys, layout: EngineLayout) -> None:
        scope = keys.scope
        self._keys = keys
        self._layout = layout
        self._encoder = ContextEncoder(
            SessionContext(
                workspace=scope.workspace,
                deployment=scope.deployment,
                tenant=scope.tenant,
                session=scope.session,
                fingerprint=layout.fingerprint,
                generation=keys.generation,
            )
        )
        self._name_prefixes: dict[tuple[int, int], bytes] = {}

    def name(self, block_hash: bytes, group: int, rank: int) -> bytes:
        """The 16-byte keyed name of a block.

        Raises:
            KeyDestroyedError: the session's key is gone.
        """
        prefix = self._name_prefixes.get((group, rank))
        if prefix is None:
            head = _NAME_HEAD.pack(group, rank, self._layout.world_size)
            prefix = _NAME_LABEL + self._layout.fingerprint + head
            self._name_prefixes[group, rank] = prefix
        return self._keys.block_name(prefix + block_hash)

    def context(self, block_hash: bytes, group: int, rank: int, index: int) -> bytes:
        """The AAD context of block ``index`` of a group."""
        layout = self._layout.groups[group]
        return self._encoder.encode(
            BlockIdentity(
                block_hash=block_hash,
                group=group,
                rank=rank,
                world_size=self._layout.world_size,
                layers=layout.layers,
                token_start=index * layout.tokens_per_block,
                token_count=layout.tokens_per_block,
            )
        )
