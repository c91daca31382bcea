"""The head of a GGUF file: its key-value fields and where each tensor's bytes are.

Format: ggml's ``docs/gguf.md``, version 3, little endian. Only what a conversion needs; the
quantised blocks themselves are decoded by the ``gguf`` package.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrun.models.folders import ModelError

MAGIC = b"GGUF"
VERSION = 3
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: its name, shape with the slowest dimension first, GGML type and bytes' place."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Fields by name, tensors in file order, and the mapped file that offsets refer to."""

    fields: dict[str, Any]
    tensors: tuple[TensorEntry, ...]
    data: mmap.mmap


def open_gguf(path: Path) -> GgufFile:
    """Map ``path`` and read its head. Raises ModelError when it is no GGUF file of version 3."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _read(data)
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is a damaged GGUF file: {error}") from error
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error


def _read(data: mmap.mmap) -> GgufFile:
    if data[:4] != MAGIC:
        raise ValueError("not a GGUF file")
    cursor = _Cursor(data, 4)
    version = cursor.scalar("<I")
    if version != VERSION:
        raise ValueError(f"GGUF version {version}, expected {VERSION}")
    tensor_count, field_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    fields = {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(field_count)}
    heads = [cursor.tensor() for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", 32)
    base = math.ceil(cursor.position / alignment) * alignment
    tensors = tuple(
        TensorEntry(head.name, head.shape, head.ggml_type, base + head.offset) for head in heads
    )
    return GgufFile(fields, tensors, data)


class _Cursor:
    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data = data
        self.position = position

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        start, self.position = self.position, self.position + length
        return self.data[start : self.position].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        element, count = self.scalar("<I"), self.scalar("<Q")
        if element in _SCALARS:
            form = f"<{count}{_SCALARS[element][1:]}"
            values = list(struct.unpack_from(form, self.data, self.position))
            self.position += struct.calcsize(form)
            return values
        return [self.value(element) for _ in range(count)]

    def tensor(self) -> TensorEntry:
        name = self.string()
        shape = tuple(self.scalar("<Q") for _ in range(self.scalar("<I")))
        return TensorEntry(name, shape[::-1], self.scalar("<I"), self.scalar("<Q"))
