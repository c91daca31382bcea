"""Which machine and which state of the code a measurement was made on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from cryptography.hazmat.backends.openssl import backend

import kvrun


def describe_machine() -> str:
    """One line: CPU, usable CPUs, memory, load, kernel, Python, OpenSSL."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return ", ".join(
        (
            _cpu_name(),
            f"{len(os.sched_getaffinity(0))} CPUs",
            f"{memory:.0f} GiB",
            f"load {os.getloadavg()[0]:.1f}",
            f"{platform.system()} {platform.release().split('-')[0]}",
            f"Python {platform.python_version()}",
            " ".join(backend.openssl_version_text().split()[:2]),
        )
    )


def describe_commit() -> str:
    """The git commit of the running code, ``+`` after it when files differ from it.

    Code that runs from an installed package has no commit; its version stands instead.
    """
    source = Path(kvrun.__file__).resolve().parent
    commit = _git(source, "rev-parse", "--short=12", "HEAD")
    tracked = _git(source, "ls-files", "__init__.py")
    if not commit or not tracked:
        return f"kvrun {kvrun.__version__}"
    return commit + ("+" if _git(source, "status", "--porcelain", "--", ".") else "")


def separate_cpus() -> list[int]:
    """The usable CPUs, one for each physical core that the system shows."""
    chosen: list[int] = []
    taken: set[int] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        if cpu not in taken:
            chosen.append(cpu)
            taken |= _siblings(cpu)
    return chosen


def cpu_wait_s() -> float:
    """Seconds that this thread was ready to run but another task had its CPU, since it began.

    Always 0 where the kernel does not tell.
    """
    try:
        _, waiting_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(waiting_ns) / 1e9


def _siblings(cpu: int) -> set[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return {cpu}
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _cpu_name() -> str:
    wanted = {"model name": "", "cpu family": "", "model": ""}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in wanted and not wanted[key.strip()]:
                wanted[key.strip()] = value.strip()
    except OSError:
        pass
    if not wanted["model name"]:
        return platform.machine()
    return f"{wanted['model name']} (family {wanted['cpu family']} model {wanted['model']})"


def _git(folder: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(
        [git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
