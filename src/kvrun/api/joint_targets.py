"""Which deployments an erasure over several reaches, what there, and the tokens of their plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvrun.api.erasures import ErasureNotFoundError
from kvrun.api.services import Services
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.plan import Plan
from kvrun.errors import KvrunError
from kvrun.launch import erasing
from kvrun.launch.joint_erasures import Target

Chosen = tuple[Deployment, Target]
MAY_HOLD_NOTHING = (DeploymentState.CREATED, DeploymentState.DELETED)
"""They never started, or are deleted."""


class SameNameError(ErasureError):
    """One certificate cannot tell two deployments apart whose configurations have one name."""

    status = 409


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """One deployment's part of a plan; ``problem`` says why there is none."""

    deployment: Deployment
    plan: Plan | None
    problem: str = ""


def reachable(services: Services, workspace_id: str) -> list[Deployment]:
    """Deployments that may hold something: not those that never started, nor deleted ones."""
    found = services.deployments.list(workspace_id, deleted=False)
    return [item for item in found if item.state not in MAY_HOLD_NOTHING]


def planned(services: Services, item: Deployment, scope: Mapping[str, str]) -> DeploymentPlan:
    """What an erasure of the scope (an operation's arguments) would reach there."""
    try:
        config = services.deployments.config_of(item)
        return DeploymentPlan(item, erasing.plan_erasure(config, scope, offline=True))
    except KvrunError as error:
        return DeploymentPlan(item, None, error.message)


def choose(
    services: Services,
    found: Sequence[tuple[Deployment, Mapping[str, str]]],
    tokens: Mapping[str, str],
    certify_pending: bool,
) -> tuple[list[Chosen], dict[str, str]]:
    """The deployments that have a token, and why the others are pending, by name.

    Raises ErasureNotFoundError without any, and SameNameError.
    """
    if not any(tokens.get(item.id) for item, _ in found):
        raise ErasureNotFoundError(
            "no deployment of the workspace was planned", hint="Plan first, and send its tokens."
        )
    chosen: list[Chosen] = []
    unknown: dict[str, str] = {}
    names: list[str] = []
    for item, scope in found:
        token = tokens.get(item.id, "")
        try:
            config = services.deployments.config_of(item.id)
        except KvrunError as error:
            if token and not certify_pending:
                raise
            names.append(name_in_log(item))
            unknown[names[-1]] = error.message
            continue
        names.append(config.deployment.name)
        if token:
            chosen.append((item, Target(config, scope, token)))
        else:
            unknown[names[-1]] = "it was not planned"
    if not chosen:
        raise ErasureNotFoundError(f"no deployment can be read: {next(iter(unknown.values()))}")
    _check_names(names)
    return chosen, unknown


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SameNameError(
                f"two deployments are named {name!r} in their configurations",
                hint="One certificate cannot tell them apart: erase in each by itself.",
            )
        seen.add(name)


def name_in_log(deployment: Deployment) -> str:
    """What its certificates call it where its configuration cannot be asked."""
    ours = deployment.launcher is LauncherKind.LOCAL
    return deployment.id if ours else deployment.spec.name
