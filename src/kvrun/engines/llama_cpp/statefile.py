"""llama.cpp's sequence state file, as far as kvrun reads it. Pure.

Layout (little endian): magic, version, number of tokens, the tokens; then one part for each KV
cache of the model: number of streams; for each stream its number of cells and, where that is not
0, each cell's position and sequence, whether values are transposed, the number of layers, up to two
words that depend on the build, and the keys and then the values of each layer. The form is
llama.cpp's own and moves with it: what is not understood whole, to its last byte, is refused.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kvrun.errors import KvrunError

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_CELL = struct.Struct("<iIi")
_WORDS = (2, 0, 1)
_PACKED = -1
T = TypeVar("T")
_MAX_STREAMS, _MAX_LAYERS, _MAX_ROW = 1024, 4096, 1 << 24


class StateFormatError(KvrunError):
    """A state file of a form that kvrun does not know."""


@dataclass(frozen=True, slots=True)
class SparseFile:
    """A file of zeros but for some pieces: ``(offset, bytes)``."""

    size_bytes: int
    pieces: tuple[tuple[int, bytes], ...]


def saved_tokens(state: memoryview) -> list[int]:
    """The tokens that a state covers, as its file names them.

    Raises StateFormatError.
    """
    reader = _Reader(state)
    return reader.head()[1]


def is_ordered(state: memoryview) -> bool:
    """Whether each cache's cells stand in the order of their positions, without a gap.

    Two such states of the same tokens have the same layout, so that pieces of one may complete
    the other. Raises StateFormatError.
    """
    return _in_its_form(lambda words: _is_ordered(state, words))


def _is_ordered(state: memoryview, words: int) -> bool:
    reader = _Reader(state)
    reader.head()
    ordered = True
    while reader.left:
        for _ in range(reader.streams()):
            held = reader.count(1 << 30)
            if held == 0:
                continue
            numbers = reader.numbers(3 * held)
            first = numbers[0]
            if numbers[::3] != list(range(first, first + held)) or set(numbers[1::3]) != {1}:
                ordered = False  # read on: only a file that is read whole is understood
            (transposed,), layers = reader.unpack(_U32), reader.count(_MAX_LAYERS)
            reader.numbers(words)
            for part in range(2):
                for _ in range(layers):
                    reader.skip(4)
                    if part and transposed:
                        element, rows = reader.transposed()
                        reader.skip(element * rows * held)
                    else:
                        reader.skip(reader.row() * held)
    return ordered


def zero_state(sample: memoryview, cells: int) -> SparseFile:
    """A state that overwrites ``cells`` cells of every cache with zeros when it is restored.

    ``sample`` is any saved state of the same server. Raises StateFormatError where it has another
    form, a recurrent model's for example.
    """
    return _in_its_form(lambda words: _zero_state(sample, cells, words))


def _zero_state(sample: memoryview, cells: int, words: int) -> SparseFile:
    reader = _Reader(sample)
    writer = _Writer()
    head, _ = reader.head()
    writer.put(head)
    while reader.left:
        _zero_cache(reader, writer, cells, words)
    return SparseFile(writer.size, tuple(writer.pieces))


def _in_its_form(read: Callable[[int], T]) -> T:
    """What ``read`` finds with the number of words that this build's files have."""
    for words in _WORDS:
        try:
            return read(words)
        except StateFormatError as error:
            refused = error
    raise refused


def _zero_cache(reader: _Reader, writer: _Writer, cells: int, words: int) -> None:
    streams = reader.streams()
    writer.put(_U32.pack(streams))
    for _ in range(streams):
        held = reader.count(1 << 30)
        if held == 0:
            writer.put(_U32.pack(0))
            continue
        for _ in range(held):
            _, sequences, _ = reader.unpack(_CELL)
            if sequences != 1:
                raise StateFormatError("a cell of a saved state belongs to several sequences")
        writer.put(_U32.pack(cells))
        writer.put(b"".join(_CELL.pack(position, 1, 0) for position in range(cells)))
        (transposed,), layers = reader.unpack(_U32), reader.count(_MAX_LAYERS)
        if transposed not in (0, 1):
            raise StateFormatError("a saved state has an unknown form of values")
        writer.put(_U32.pack(transposed) + _U32.pack(layers))
        writer.put(b"".join(map(_I32.pack, reader.numbers(words))))
        for _ in range(layers):
            _zero_rows(reader, writer, held, cells)
        for _ in range(layers):
            if transposed:
                _zero_transposed(reader, writer, held, cells)
            else:
                _zero_rows(reader, writer, held, cells)


def _zero_rows(reader: _Reader, writer: _Writer, held: int, cells: int) -> None:
    (kind,), row = reader.unpack(_I32), reader.row()
    reader.skip(row * held)
    writer.put(_I32.pack(kind) + _U64.pack(row))
    writer.leave(row * cells)


def _zero_transposed(reader: _Reader, writer: _Writer, held: int, cells: int) -> None:
    (kind,), (element, rows) = reader.unpack(_I32), reader.transposed()
    reader.skip(element * rows * held)
    writer.put(_I32.pack(kind) + _U32.pack(element) + _U32.pack(rows))
    writer.leave(element * rows * cells)


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def head(self) -> tuple[bytes, list[int]]:
        """Everything before the caches, and the tokens in it."""
        self.skip(8)
        numbers = self.numbers(self.count(1 << 30))
        head = bytes(self._data[: self._at])
        if not numbers or numbers[0] != _PACKED:
            return head, numbers
        # Newer builds put a mark, a version and a count before the tokens, and media after them.
        if len(numbers) < 3 or not 0 <= numbers[2] <= len(numbers) - 3:
            raise StateFormatError("a saved state's tokens cannot be read")
        return head, numbers[3 : 3 + numbers[2]]

    def numbers(self, count: int) -> list[int]:
        """So many signed 32-bit numbers."""
        start = self._at
        self.skip(4 * count)
        return array("i", bytes(self._data[start : self._at])).tolist()

    def streams(self) -> int:
        """How many streams a cache has."""
        streams = self.count(_MAX_STREAMS)
        if not streams:
            raise StateFormatError("a saved state has a cache without streams")
        return streams

    def row(self) -> int:
        """Bytes of a cell in a layer."""
        (row,) = self.unpack(_U64)
        if not 0 < row <= _MAX_ROW:
            raise StateFormatError(f"a saved state has rows of {row} bytes")
        return row

    def transposed(self) -> tuple[int, int]:
        """Bytes of an element and elements of a cell, in a layer whose values are transposed."""
        (element,), (rows,) = self.unpack(_U32), self.unpack(_U32)
        if not 0 < element * rows <= _MAX_ROW:
            raise StateFormatError(f"a saved state has {rows} rows of {element} bytes a cell")
        return element, rows

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        start = self._at
        self.skip(form.size)
        return form.unpack_from(self._data, start)

    def count(self, most: int) -> int:
        (value,) = self.unpack(_U32)
        if value > most:
            raise StateFormatError(f"a saved state counts {value} where at most {most} can be")
        return value

    def skip(self, size: int) -> None:
        if size > self.left:
            raise StateFormatError("a saved state ends early, or has a form that is not known")
        self._at += size


class _Writer:
    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = 0

    def put(self, data: bytes) -> None:
        self.pieces.append((self.size, data))
        self.size += len(data)

    def leave(self, size: int) -> None:
        self.size += size
