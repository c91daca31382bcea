"""TESTS ONLY: takes the place of the CUDA-only package ``sglang-kernel`` on a machine without GPU.

Every name can be imported, from every submodule, and raises when it is called. The one function
that SGLang's CPU path calls is written in torch.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0+kvrun.test"
__path__: list[str] = []


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    *_: Any,
) -> None:
    """Write each request's new KV locations into its row, in the order of the requests."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in rows:
        locations = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = locations.to(req_to_token.dtype)
        taken += end - start


class _Absent:
    """A kernel that this machine does not have."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{self.__name__} needs a GPU")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name)


class _Submodules(MetaPathFinder, Loader):
    """Any ``sgl_kernel.x.y`` exists and is full of absent kernels."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__["__getattr__"] = __getattr__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.append(_Submodules())
