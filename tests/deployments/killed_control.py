"""A control plane in a process of its own, which is killed at one of its steps."""

from __future__ import annotations

import os
import signal
import subprocess
import traceback
from pathlib import Path
from typing import Any

from deploy_rig import WORKSPACE, Rig, spec

from kvrun.deployments import folder, local, supervision
from kvrun.deployments.store import DeploymentStore
from kvrun.deployments.supervision import Supervision

STEPS: dict[str, tuple[Any, str]] = {
    "insert": (DeploymentStore, "insert"),
    "prepare": (Supervision, "prepare"),
    "api_keys": (folder, "save_api_keys"),
    "command": (DeploymentStore, "command"),
    "put_place": (DeploymentStore, "put_place"),
    "open_gateway": (supervision.folder, "open_gateway"),
    "hold": (local, "hold_file"),
    "spawn": (subprocess, "Popen"),
    "save": (DeploymentStore, "save"),
    "terminate": (local.LocalLauncher, "terminate"),
}


def die() -> None:
    """As the kernel ends a process that is out of luck."""
    os.kill(os.getpid(), signal.SIGKILL)


def plant(moment: str) -> None:
    """Die before or after the step."""
    when, _, name = moment.partition(":")
    owner, attribute = STEPS[name]
    original = getattr(owner, attribute)

    def step(*given: Any, **named: Any) -> Any:
        if when == "before":
            die()
        done = original(*given, **named)
        die()
        return done

    setattr(owner, attribute, step)


def run_killed(home: Path, deployment_id: str, command: str, moment: str) -> None:
    """Create, start or stop a deployment, and be killed.

    ``moment`` is ``before:NAME`` or ``after:NAME`` of a step, or ``end``.
    """
    child = os.fork()
    if not child:
        try:
            _act(home, deployment_id, command, moment)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it came to its end without that step"
    assert os.WTERMSIG(status) == signal.SIGKILL


def _act(home: Path, deployment_id: str, command: str, moment: str) -> None:
    rig = Rig(home)
    if moment != "end":
        plant(moment)
    if command == "create":
        rig.deployments.create(WORKSPACE, spec())
    elif command == "start":
        rig.deployments.start(deployment_id)
    else:
        rig.deployments.stop(deployment_id, wait_s=20)
    die()
