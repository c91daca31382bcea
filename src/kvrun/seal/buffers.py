"""A caller's buffer seen as flat bytes, without copying it, and where it lies in memory.

Addresses come from the buffer protocol itself (PEP 3118), because a read-only view of a buffer
that is also the destination would escape every check that needs a writable object.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from kvrun.seal.errors import SealBufferError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def flat_bytes(name: str, buffer: Buffer, writable: bool) -> memoryview:
    """A one-dimensional view of ``buffer`` as unsigned bytes; ``name`` stands in messages.

    Raises :class:`SealBufferError` when it is no buffer, not of bytes, not C-contiguous, or
    read-only where ``writable`` is asked for.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        raise SealBufferError(
            f"{name} is {type(buffer).__name__}, which has no buffer of bytes.",
            hint="Pass bytes, bytearray, memoryview, mmap or a uint8 array. "
            "A CPU torch tensor: tensor.view(torch.uint8).numpy().",
        ) from None
    if writable and view.readonly:
        raise SealBufferError(f"{name} is read-only.", hint="Pass a writable buffer.")
    if view.ndim == 1 and view.format == "B" and view.c_contiguous:
        return view
    return _flatten(name, view)


def overlap(one: memoryview, other: memoryview) -> bool:
    """Whether two views from :func:`flat_bytes` share at least one byte of memory."""
    if not (one.nbytes and other.nbytes):
        return False
    start, other_start = _address(one), _address(other)
    return start < other_start + other.nbytes and other_start < start + one.nbytes


def zero(view: memoryview) -> None:
    """Overwrite every byte of a writable view from :func:`flat_bytes` with zero."""
    if view.nbytes:
        ctypes.memset(_address(view), 0, view.nbytes)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy between views of one length from :func:`flat_bytes`, without the GIL meanwhile."""
    if target.readonly or target.nbytes != source.nbytes:
        raise SealBufferError(
            f"{source.nbytes} bytes do not go into "
            f"{'a read-only buffer' if target.readonly else f'one of {target.nbytes}'}."
        )
    ctypes.memmove(_address(target), _address(source), source.nbytes)


_BYTE_FORMATS = frozenset(("B", "b", "c"))


def _flatten(name: str, view: memoryview) -> memoryview:
    if view.format not in _BYTE_FORMATS:
        raise SealBufferError(
            f"{name} holds items of format {view.format!r}, not bytes.",
            hint="View it as unsigned bytes first (uint8).",
        )
    if not view.c_contiguous:
        raise SealBufferError(
            f"{name} is not C-contiguous.", hint="Pass one contiguous run of bytes."
        )
    # memoryview cannot flatten an empty array of several dimensions.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of CPython's stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None

_SIMPLE = 0  # PyBUF_SIMPLE: contiguous bytes, no shape


def _address(view: memoryview) -> int:
    # The view keeps the memory where it is; the second export is only read and given back.
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))  # much faster
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), _SIMPLE)
    try:
        return int(raw.buf or 0)
    finally:
        _release_buffer(ctypes.byref(raw))
