"""An instance daemon that can copy instead of sealing: a baseline for measurements, nothing else.

It is a module of the benchmarks, started by them alone. No setting of a deployment leads here.
While a file ``copying`` lies beside the configuration, what comes is copied; what was copied is
copied back, and everything else is sealed and opened as ever. So one engine and one daemon measure
both, and no difference between two processes is taken for the cipher's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvrun.errors import KvrunError
from kvrun.launch.children import run_instance
from kvrun.seal.envelope import HEADER_BYTES, TAG_BYTES, BlockSealer

if TYPE_CHECKING:
    from typing_extensions import Buffer

SWITCH = "copying"
_COPIED = bytes(HEADER_BYTES)


def main() -> None:
    """``instance --config FILE`` whose cipher a file turns off."""
    config = Path(sys.argv[-1])
    replace_cipher(config.with_name(SWITCH))
    try:
        run_instance(config, os.environ)
    except KvrunError as error:
        sys.exit(f"kvrun: {error.diagnostics()}")


def replace_cipher(switch: Path) -> None:
    """Has every sealer of this process copy what comes while ``switch`` is there."""
    seal_into, open_into = BlockSealer.seal_into, BlockSealer.open_into

    def seal_or_copy(
        self: BlockSealer, context: bytes, plaintext: Buffer, out: Buffer, *, salt: bytes
    ) -> None:
        if not switch.exists():
            seal_into(self, context, plaintext, out, salt=salt)
            return
        room = memoryview(out)
        room[:HEADER_BYTES] = _COPIED
        room[HEADER_BYTES:-TAG_BYTES] = memoryview(plaintext)

    def open_or_copy(self: BlockSealer, context: bytes, sealed: Buffer, out: Buffer) -> None:
        content = memoryview(sealed)
        if content[:HEADER_BYTES] != _COPIED:
            open_into(self, context, sealed, out)
            return
        memoryview(out)[:] = content[HEADER_BYTES:-TAG_BYTES]

    BlockSealer.seal_into = seal_or_copy  # type: ignore[method-assign]
    BlockSealer.open_into = open_or_copy  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
