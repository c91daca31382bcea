"""An instance daemon that copies instead of sealing: a baseline for measurements, nothing else.

It is a module of the benchmarks, started by them alone. No setting of a deployment leads here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvrun.seal import envelope

if TYPE_CHECKING:
    from typing_extensions import Buffer


def main() -> None:
    """Run ``kvrun instance`` with the cipher replaced by a copy of the same size."""
    envelope.BlockSealer.seal_into = _copy_in  # type: ignore[method-assign]
    envelope.BlockSealer.open_into = _copy_out  # type: ignore[method-assign]
    from kvrun.cli.main import main as kvrun

    sys.argv[0] = "kvrun"
    kvrun()


def _copy_in(
    self: envelope.BlockSealer, context: bytes, plaintext: Buffer, out: Buffer, *, salt: bytes
) -> None:
    memoryview(out)[envelope.HEADER_BYTES : -envelope.TAG_BYTES] = memoryview(plaintext)


def _copy_out(self: envelope.BlockSealer, context: bytes, sealed: Buffer, out: Buffer) -> None:
    memoryview(out)[:] = memoryview(sealed)[envelope.HEADER_BYTES : -envelope.TAG_BYTES]


if __name__ == "__main__":
    main()
