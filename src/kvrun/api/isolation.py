"""Isolation self-tests for somebody. Routes and pages use these."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kvrun.accounts.actor import Actor
from kvrun.accounts.permissions import Permission
from kvrun.api.services import Services
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.isolation.run import Options
from kvrun.isolation.service import StoredResult, self_test, stored_results
from kvrun.isolation.target import SelfTestError

_STOP_S = 120.0
_POLL_S = 0.2


def results(services: Services, actor: Actor, deployment_id: str) -> list[StoredResult]:
    """The deployment's results in Storage, the last one first.

    Raises NotFoundError, ForbiddenError and StorageError.
    """
    found = services.find(actor, Permission.VIEW, deployment_id)
    return stored_results(services.deployments.config_of(found.id))


def run(
    services: Services,
    actor: Actor,
    deployment_id: str,
    options: Options,
    say: Callable[[str], None] = lambda text: None,
) -> StoredResult:
    """Test a running deployment; takes a minute or so. That somebody wants it is on record, and one
    that fails raises an alert.

    Raises NotFoundError, ForbiddenError, AuditError, and SelfTestError where it cannot be tested.
    """
    found = services.find(actor, Permission.DEPLOY, deployment_id)
    if found.state is not DeploymentState.RUNNING:
        raise SelfTestError(
            f"the deployment {found.spec.name} is {found.state.value}; only one that runs is"
            " tested",
            hint="Start it, and test it once it is running.",
        )
    services.access_log.asked(found, "isolation self-test", actor.reference)
    ours = found.launcher is LauncherKind.LOCAL
    if options.restart and not ours:
        raise SelfTestError(
            "somebody else runs this deployment, so it is not restarted here",
            hint="Test it without a restart.",
        )
    return self_test(
        services.deployments.config_of(found.id),
        found.config_file,
        replace(options, restart=options.restart and ours),
        restart=(lambda: _restart(services, found)) if ours else None,
        now=services.now,
        say=say,
    )


def _restart(services: Services, found: Deployment) -> None:
    """Stop it, start it, and wait until it runs again. Raises SelfTestError."""
    services.deployments.stop(found.id, wait_s=_STOP_S)
    services.deployments.start(found.id)
    config = services.deployments.config_of(found.id)
    deadline = time.monotonic() + config.engine.startup_timeout_s
    while time.monotonic() < deadline:
        services.deployments.supervise()
        if services.deployments.get(found.id).state is DeploymentState.RUNNING:
            return
        time.sleep(_POLL_S)
    raise SelfTestError(
        f"the deployment {found.spec.name} did not come back",
        hint=f"What its processes printed says why: kvrun deployments logs {found.id} engine",
    )
