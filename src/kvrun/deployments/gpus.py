"""Which GPUs a deployment gets, and who else is on them, as nvidia-smi says at its start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from kvrun.deployments.errors import SharedGpuError
from kvrun.deployments.model import DeploymentSpec, ForeignProcess, GpuNote

_TIMEOUT_S = 20.0
_MIB = 2**20
_GPUS = "index,uuid,name,memory.total"
_PROCESSES = "gpu_uuid,pid,process_name,used_memory"


def look_at_gpus(ids: Sequence[int]) -> tuple[GpuNote, ...] | None:
    """These GPUs, or all where none is named, with every process on them.

    None where nvidia-smi is missing or does not answer.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    gpus, processes = (
        _ask(tool, f"--query-{what}={fields}")
        for what, fields in (("gpu", _GPUS), ("compute-apps", _PROCESSES))
    )
    if gpus is None or processes is None:
        return None
    return parse_gpus(gpus, processes, ids)


def parse_gpus(gpus: str, processes: str, ids: Sequence[int]) -> tuple[GpuNote, ...]:
    """The notes in nvidia-smi's two answers (``--format=csv,noheader,nounits``)."""
    on: dict[str, list[ForeignProcess]] = {}
    for uuid, pid, name, used in _rows(processes):
        if pid.isdigit():
            found = ForeignProcess(int(pid), name[:200], _mib(used))
            on.setdefault(uuid, []).append(found)
    return tuple(
        GpuNote(int(index), uuid, name[:200], _mib(total), tuple(on.get(uuid, ())))
        for index, uuid, name, total in _rows(gpus)
        if index.isdigit() and (not ids or int(index) in ids)
    )


def check_gpus(spec: DeploymentSpec, notes: tuple[GpuNote, ...] | None) -> tuple[GpuNote, ...]:
    """The notes to keep, unless others use a GPU and the spec does not allow that.

    Raises SharedGpuError, which names GPU and process.
    """
    if notes is None:
        if spec.gpu_ids and not spec.allow_shared_gpu:
            raise SharedGpuError(
                "GPUs were chosen, but nvidia-smi does not say who uses them",
                hint="Install it, choose no GPUs, or set allow_shared_gpu.",
            )
        return ()
    missing = set(spec.gpu_ids) - {note.index for note in notes}
    if missing:
        raise SharedGpuError(f"this machine has no GPU {min(missing)}")
    for note in notes:
        if note.shared and not spec.allow_shared_gpu:
            first = note.foreign[0]
            raise SharedGpuError(
                f"GPU {note.index} ({note.name}) is used by process {first.pid} ({first.name})",
                hint="Stop it, choose other gpu_ids, or set allow_shared_gpu: every page says so "
                "then.",
            )
    return notes


def _ask(tool: str, query: str) -> str | None:
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _rows(text: str) -> list[tuple[str, str, str, str]]:
    """Lines of four fields, of which the third, a name, may hold commas."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    return [(row[0], row[1], ",".join(row[2:-1]), row[-1]) for row in rows if len(row) >= 4]


def _mib(text: str) -> int:
    return int(text) * _MIB if text.isdigit() else 0
