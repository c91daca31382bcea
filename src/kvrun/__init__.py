"""kvrun: governed inference, with a KV cache that is sealed, isolated, erasable and audited.

``kvrun.Client`` and ``kvrun.AsyncClient`` speak to a control plane; they are loaded when they are
first asked for, so that importing kvrun stays cheap for the processes that need neither.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "Client"):
        return getattr(import_module("kvrun.client"), name)
    raise AttributeError(f"module 'kvrun' has no attribute {name!r}")
