"""Every text that Python objects hold, followed as the garbage collector follows them."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType


def texts_held_by(thing: object) -> set[str]:
    """The texts, and bytes as Latin-1, that can be reached from ``thing``; code is left out."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(
            item, type | ModuleType | FunctionType | BuiltinFunctionType
        ):
            continue
        seen.add(id(item))
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, bytes | bytearray):
            found.add(bytes(item).decode("latin-1"))
        else:
            waiting += gc.get_referents(item)
    return found
