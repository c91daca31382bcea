"""GPUs and who else is on them: noted at the start, refused unless somebody allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy_rig import WORKSPACE, Rig, spec

from kvrun.deployments.errors import SharedGpuError
from kvrun.deployments.gpus import check_gpus, look_at_gpus, parse_gpus
from kvrun.deployments.model import DeploymentState
from kvrun.deployments.views import DeploymentViews

GPUS = "0, GPU-aaaa, NVIDIA H200, 143771\n1, GPU-bbbb, NVIDIA H200, 143771\n"
TOOL = """#!/bin/sh
case "$1" in
  --query-gpu=*) printf '{gpus}' ;;
  *) printf '{processes}' ;;
esac
"""


def test_every_process_is_found_whatever_its_name_is() -> None:
    found = parse_gpus(GPUS, "GPU-bbbb, 17, /opt/a, b, c/python, 512\nGPU-bbbb, 18, x, [N/A]\n", ())
    assert [note.index for note in found] == [0, 1]
    assert found[0].memory_bytes == 143771 << 20
    assert not found[0].shared
    assert [(item.pid, item.memory_bytes) for item in found[1].foreign] == [
        (17, 512 << 20),
        (18, 0),
    ]
    assert found[1].foreign[0].name == "/opt/a,b,c/python"


def test_only_the_chosen_gpus_count() -> None:
    assert [note.index for note in parse_gpus(GPUS, "", (1,))] == [1]
    with pytest.raises(SharedGpuError, match="no GPU 7"):
        check_gpus(spec(gpu_ids=(7,)), parse_gpus(GPUS, "", (7,)))


def test_chosen_gpus_are_refused_where_nobody_can_tell_who_uses_them() -> None:
    with pytest.raises(SharedGpuError, match="nvidia-smi"):
        check_gpus(spec(gpu_ids=(0,)), None)
    assert check_gpus(spec(), None) == ()


def test_the_tool_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look_at_gpus(()) is None
    tool = tmp_path / "nvidia-smi"
    gpus = GPUS.replace("\n", "\\n")
    tool.write_text(TOOL.format(gpus=gpus, processes="GPU-aaaa, 17, train.py, 9\\n"))
    tool.chmod(0o700)
    notes = look_at_gpus((0,))
    assert notes is not None
    assert notes[0].foreign[0].name == "train.py"
    tool.write_text("#!/bin/sh\nexit 3\n")
    assert look_at_gpus((0,)) is None


def test_a_shared_gpu_is_refused_and_where_it_is_allowed_every_page_says_so(rig: Rig) -> None:
    rig.gpus = lambda ids: parse_gpus(GPUS, "GPU-aaaa, 17, train.py, 9\n", ids)
    refused = rig.deployments.create(WORKSPACE, spec("refused", gpu_ids=(0,)))
    with pytest.raises(SharedGpuError, match=r"GPU 0 .* process 17 \(train\.py\)"):
        rig.deployments.start(refused.id)
    assert rig.deployments.get(refused.id).state is DeploymentState.CREATED
    assert rig.launches(refused.id) == []
    shared = rig.running(spec("shared", gpu_ids=(0,), allow_shared_gpu=True))
    assert shared.shares_gpu
    assert shared.gpu_notes[0].foreign[0].pid == 17
    said, *_ = DeploymentViews(rig.deployments).overview(shared.id).warnings
    assert "GPU 0 is shared" in said
    alone = rig.running(spec("alone", gpu_ids=(1,)))
    assert not alone.shares_gpu
    assert [note.index for note in alone.gpu_notes] == [1]


def test_a_restart_on_a_gpu_that_somebody_took_waits_and_says_why(rig: Rig) -> None:
    rig.gpus = lambda ids: parse_gpus(GPUS, "", ids)
    running = rig.running(spec(gpu_ids=(0,)))
    rig.gpus = lambda ids: parse_gpus(GPUS, "GPU-aaaa, 17, train.py, 9\n", ids)
    (running.folder / "die").touch()
    rig.until(running.id, DeploymentState.FAILED)
    (running.folder / "die").unlink()
    rig.clock.ahead_s += 10
    rig.deployments.supervise()
    waiting = rig.deployments.get(running.id)
    assert waiting.state is DeploymentState.FAILED
    assert "train.py" in waiting.reason
    assert len(rig.launches(running.id)) == 1
