"""The 32-byte fingerprint that binds sealed blocks to exactly one way of computing KV.

It covers everything that changes what the bytes of a block mean: weights, tokenizer and
configuration of the model, number formats, the engine and its page layout, and the CPU
instruction set that packed pages depend on.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvrun.models.folders import ModelError

FINGERPRINT_BYTES = 32
HASHED_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf", ".model", ".json", ".txt", ".jinja")
IGNORED_NAMES = frozenset({"generation_config.json", "evaluation.json", "evaluation.intoto.json"})
"""Files that steer sampling or speak of the model: the same KV comes out whatever they say."""

_LABEL = b"kvrun model fingerprint v1"
_ISA_FLAGS = (
    "amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512f", "avx512_vnni", "avx2",
    "asimd", "bf16", "sve", "vx",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How the engine stores KV: number formats, engine with version, page layout, CPU features."""

    dtype: str
    kv_dtype: str
    engine: str
    layout: str
    isa: str


def model_fingerprint(model_digest: bytes, kv_format: KvFormat) -> bytes:
    """SHA-256 over the model's digest and the KV format, each field with its length in front."""
    digest = hashlib.sha256()
    texts = (
        kv_format.dtype, kv_format.kv_dtype, kv_format.engine, kv_format.layout, kv_format.isa,
    )  # fmt: skip
    for part in (_LABEL, model_digest, *(text.encode() for text in texts)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def model_digest(folder: Path, cache: Path | None = None) -> bytes:
    """SHA-256 of the manifest (name and SHA-256) of the model files in ``folder``.

    ``cache`` is a JSON file that remembers a file's hash by its path, size, time of change and
    inode; without it every byte is read. Raises ModelError for a folder without model files.
    """
    files = _model_files(folder)
    remembered = _HashCache(cache)
    with ThreadPoolExecutor(max_workers=4) as pool:
        hashes = list(pool.map(remembered.sha256, files))
    remembered.save()
    digest = hashlib.sha256(_LABEL)
    for path, value in zip(files, hashes, strict=True):
        name = path.relative_to(folder).as_posix().encode()
        digest.update(len(name).to_bytes(8, "big") + name + bytes.fromhex(value))
    return digest.digest()


def file_digest(path: Path, cache: Path | None = None) -> bytes:
    """SHA-256 of one file; ``cache`` as for :func:`model_digest`. Raises ModelError."""
    remembered = _HashCache(cache)
    digest = bytes.fromhex(remembered.sha256(path))
    remembered.save()
    return digest


def cpu_isa(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU features that change how pages are packed, comma-separated; "unknown" if unread."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features", "features"):
            present = set(value.split())
            return ",".join(flag for flag in _ISA_FLAGS if flag in present) or "baseline"
    return "unknown"


def _model_files(folder: Path) -> list[Path]:
    try:
        files = sorted(
            path
            for path in folder.rglob("*")
            if path.suffix in HASHED_SUFFIXES
            and path.name not in IGNORED_NAMES
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
            and path.is_file()
        )
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error}") from error
    if not any(path.name == "config.json" for path in files):
        raise ModelError(f"{folder} is not a model folder: it has no config.json")
    return files


class _HashCache:
    """SHA-256 by file, kept in one JSON file; losing it costs time, nothing else."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        self._fresh = False
        if path is not None:
            with suppress(OSError, ValueError):
                loaded = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(loaded, dict):
                    self._known = {str(key): str(value) for key, value in loaded.items()}

    def sha256(self, path: Path) -> str:
        try:
            real = path.resolve()
            status = real.stat()
            key = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}:{real}"
            known = self._known.get(key)
            if known is None:
                with real.open("rb") as file:
                    known = hashlib.file_digest(file, "sha256").hexdigest()
                self._known[key] = known
                self._fresh = True
            return known
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error}") from error

    def save(self) -> None:
        if self._path is None or not self._fresh:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(dict(_newest(self._known.items())), file)
            Path(name).replace(self._path)


def _newest(items: Iterable[tuple[str, str]], most: int = 10_000) -> list[tuple[str, str]]:
    return list(items)[-most:]
