"""An instance daemon that copies instead of sealing: a baseline for measurements, nothing else.

It is a module of the benchmarks, started by them alone. No setting of a deployment leads here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvrun.errors import KvrunError
from kvrun.launch.children import run_instance
from kvrun.seal import envelope

if TYPE_CHECKING:
    from typing_extensions import Buffer


def main() -> None:
    """``instance --config FILE`` with the cipher replaced by a copy of the same size."""
    envelope.BlockSealer.seal_into = _copy_in  # type: ignore[method-assign]
    envelope.BlockSealer.open_into = _copy_out  # type: ignore[method-assign]
    try:
        run_instance(Path(sys.argv[-1]), os.environ)
    except KvrunError as error:
        sys.exit(f"kvrun: {error.diagnostics()}")


def _copy_in(
    self: envelope.BlockSealer, context: bytes, plaintext: Buffer, out: Buffer, *, salt: bytes
) -> None:
    memoryview(out)[envelope.HEADER_BYTES : -envelope.TAG_BYTES] = memoryview(plaintext)


def _copy_out(self: envelope.BlockSealer, context: bytes, sealed: Buffer, out: Buffer) -> None:
    memoryview(out)[:] = memoryview(sealed)[envelope.HEADER_BYTES : -envelope.TAG_BYTES]


if __name__ == "__main__":
    main()
