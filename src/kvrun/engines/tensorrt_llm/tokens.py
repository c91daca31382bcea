"""Names of a request's blocks and of salts, as far as TensorRT-LLM leaves them to the connector."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from kvrun.errors import KvrunError

_LABEL = b"kvrun/tensorrt-llm/blocks/v1\x00"


class SaltNumberError(KvrunError):
    """Salts cannot be told apart without the package that numbers them as TensorRT-LLM does."""


def block_hashes(tokens: Sequence[int], tokens_per_block: int, variant: str = "") -> list[bytes]:
    """One 32-byte hash for every whole block: each covers all tokens up to the block's end.

    ``variant`` names what else changes the KV of the same tokens, a LoRA adapter for example. The
    salt is not in it: the daemon names blocks under the session's key.
    """
    chain = hashlib.sha256(_LABEL + variant.encode()).digest()
    hashes = []
    for start in range(0, len(tokens) - tokens_per_block + 1, tokens_per_block):
        block = tokens[start : start + tokens_per_block]
        chain = hashlib.sha256(chain + struct.pack(f">{len(block)}q", *block)).digest()
        hashes.append(chain)
    return hashes


def salt_number(salt: str) -> int:
    """TensorRT-LLM's ``cache_salt_id``: the first 8 bytes of BLAKE3 of the salt, little endian.

    Raises:
        SaltNumberError: the package ``blake3`` is not installed.
    """
    try:
        from blake3 import blake3
    except ImportError as error:
        raise SaltNumberError(
            "the package blake3 is not installed, so salts have no numbers",
            hint="pip install 'kvrun[tensorrt-llm]'",
        ) from error
    return int.from_bytes(blake3(salt.encode()).digest()[:8], "little")
