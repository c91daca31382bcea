"""What a disk gives to whoever only reads: fio where it is installed, else one plain read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kvrun.errors import KvrunError

_READ_BYTES = 1 << 20
_FIO = (
    "--name=read --rw=read --bs=1M --direct=1 --ioengine=libaio --iodepth=8 --readonly "
    "--output-format=json"
)


class _Read(msgspec.Struct):
    bw_bytes: float


class _Job(msgspec.Struct):
    read: _Read


class _Fio(msgspec.Struct):
    jobs: list[_Job]


def disk_reader(file: Path) -> tuple[Callable[[], float], str]:
    """Reads ``file`` once, in bytes a second, and what does it, in words."""
    fio = shutil.which("fio")
    if fio is None:
        return lambda: _read_plainly(file), "a sequential read of this disk (fio is not installed)"
    return lambda: _read_by_fio(fio, file), "fio --rw=read --bs=1M --direct=1 --iodepth=8"


def drop_from_cache(files: Iterable[Path]) -> None:
    """Makes files durable, and has the system forget what it holds of them."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _read_plainly(path: Path) -> float:
    buffer = bytearray(_READ_BYTES)
    began = time.perf_counter()
    done = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            done += count
    return done / (time.perf_counter() - began)


def _read_by_fio(fio: str, path: Path) -> float:
    command = [fio, f"--filename={path}", *_FIO.split()]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        return msgspec.json.decode(done.stdout, type=_Fio).jobs[0].read.bw_bytes
    except (msgspec.MsgspecError, IndexError) as error:
        reason = done.stderr.decode(errors="replace").strip()[:300]
        raise KvrunError(f"fio did not read {path}: {reason or error}") from error
