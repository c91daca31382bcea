"""The single questions of ``kvrun doctor``; each answers with a :class:`Check`."""

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import msgspec

from kvrun.config import KvrunConfig
from kvrun.config.values import size_text
from kvrun.engines.vllm.installed import EngineMissingError
from kvrun.keys.filesystem import ClaimClass, filesystem_facts
from kvrun.launch.engines import require_engine_of
from kvrun.launch.readiness import AddressInUseError, require_free

MIN_PYTHON = (3, 11)
MIN_CRYPTOGRAPHY = 50
SPEED_SECONDS = 0.02
SPEED_BLOCK = 1 << 20
SLOW_BYTES_PER_S = 1e9
_SYS_MEMFD_SECRET = 447


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor: what was looked at, what was found, what to do."""

    name: str
    level: Level
    found: str
    next_step: str = ""


def check_python() -> Check:
    """The interpreter's version."""
    found = f"{platform.python_version()} on {platform.machine()}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", Level.FAIL, found, "install Python 3.11 or newer")
    return Check("python", Level.OK, found)


def check_cryptography() -> Check:
    """The cryptography package, which must release the GIL and write into buffers."""
    import cryptography
    from cryptography.hazmat.backends.openssl.backend import backend

    found = f"cryptography {cryptography.__version__}, {backend.openssl_version_text()}"
    if int(cryptography.__version__.split(".")[0]) < MIN_CRYPTOGRAPHY:
        return Check("cryptography", Level.FAIL, found, 'pip install "cryptography>=50,<51"')
    return Check("cryptography", Level.OK, found)


def check_speed(clock: Callable[[], float]) -> Check:
    """AES-256-GCM on one core for 20 ms: without hardware AES sealing would rule the load time."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, data = AESGCM(bytes(32)), bytes(SPEED_BLOCK)
    cipher.encrypt(bytes(12), data, None)
    start, blocks = clock(), 0
    while clock() - start < SPEED_SECONDS:
        # A measurement on zeros under a zero key: the repeated nonce protects nothing here.
        cipher.encrypt(bytes(12), data, None)
        blocks += 1
    speed = blocks * SPEED_BLOCK / (clock() - start)
    found = f"AES-256-GCM {speed / 1e9:.1f} GB/s on one core"
    if speed < SLOW_BYTES_PER_S:
        return Check("sealing speed", Level.WARN, found, "a CPU with AES instructions is faster")
    return Check("sealing speed", Level.OK, found)


def check_memlock(memory_bytes: int, *, strict: bool) -> Check:
    """Whether the memory tier can be locked, so that it is never swapped out."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return Check("memlock", Level.OK, "unlimited" if os.geteuid() else "not limited for root")
    found = f"limit {size_text(limit)}, memory tier {size_text(memory_bytes)}"
    if limit >= memory_bytes:
        return Check("memlock", Level.OK, found)
    step = "raise it: LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (containers)"
    return Check("memlock", Level.FAIL if strict else Level.WARN, found, step)


def check_secret_memory() -> Check:
    """Whether keys can be in memory that not even the kernel maps (memfd_secret)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_SYS_MEMFD_SECRET, 0)
    if descriptor >= 0:
        os.close(descriptor)
        return Check("memfd_secret", Level.OK, "available")
    reason = os.strerror(ctypes.get_errno())
    step = "keys are in locked memory instead; secretmem.enable=1 on the kernel's command line"
    return Check("memfd_secret", Level.WARN, reason, step)


def check_memory(memory_bytes: int) -> Check:
    """Whether the memory tier fits what is free now."""
    available = _available_memory()
    if available is None:
        return Check("memory", Level.WARN, "/proc/meminfo cannot be read", "check it by hand")
    found = f"{size_text(available)} available, memory tier {size_text(memory_bytes)}"
    if memory_bytes > available:
        return Check("memory", Level.FAIL, found, "lower instance.memory_bytes")
    return Check("memory", Level.OK, found)


def check_filesystem(data_dir: Path) -> Check:
    """What destroying a key file proves on the filesystem of the data folder."""
    folder = data_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    facts = filesystem_facts(folder)
    found = f"{facts.filesystem} at {facts.mount_point}: {facts.reason}"
    if facts.claim is ClaimClass.LOGICAL:
        return Check(
            "filesystem",
            Level.WARN,
            found,
            "put instance.data_dir on ext4 or xfs, or keep the root outside files",
        )
    return Check("filesystem", Level.OK, found)


def check_engine(config: KvrunConfig) -> Check:
    """The engine that the configuration names, and its version."""
    try:
        engine = require_engine_of(config)
    except EngineMissingError as error:
        return Check("engine", Level.FAIL, error.message, error.hint or "")
    kind = "CPU" if engine.cpu else "GPU"
    return Check("engine", Level.OK, f"{engine.distribution} {engine.version} ({kind})")


def check_port(host: str, port: int) -> Check:
    """Whether the gateway can listen."""
    try:
        require_free(host, port, "gateway.port")
    except AddressInUseError as error:
        return Check("gateway port", Level.FAIL, error.message, error.hint or "")
    return Check("gateway port", Level.OK, f"{host}:{port} is free")


def _available_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
