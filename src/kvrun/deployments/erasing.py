"""Erasing a session, a tenant or a person in one deployment, and what was said of them with it."""

from __future__ import annotations

from dataclasses import dataclass

from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.service import Deployments
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import Plan
from kvrun.instance.erasures import ErasureResult
from kvrun.launch.erasing import erase, plan_erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureAsked:
    """What is to be erased, who asks and why. ``confirm`` is the token of a plan."""

    kind: RequestKind
    tenant: str
    session: str = ""
    requester: str = ""
    reference: str = ""
    legal_basis: str = ""
    confirm: str = ""


class DeploymentErasures:
    """Plans and erases in running and in stopped deployments."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments

    def plan(self, deployment_id: str, asked: ErasureAsked) -> Plan:
        """What it would reach now, with the token to confirm it. Raises KvrunError."""
        config = self._deployments.config_of(deployment_id)
        return plan_erasure(config, _arguments(asked), offline=True)

    def erase(self, deployment_id: str, asked: ErasureAsked) -> ErasureResult:
        """Erase and certify; labels and class of an erased tenant are forgotten.

        Raises WrongStateError for a scope that is the whole deployment, ConfirmationError, and
        what a step raises.
        """
        if asked.kind is RequestKind.DEPLOYMENT:
            raise WrongStateError("a whole deployment is erased by deleting it")
        config = self._deployments.config_of(deployment_id)
        done = erase(config, _arguments(asked), offline=True)
        if asked.kind is not RequestKind.SESSION:
            self._deployments.tenants.forget(deployment_id, {key.tenant_ref for key in done.erased})
        return done


def _arguments(asked: ErasureAsked) -> dict[str, str]:
    return {
        "kind": asked.kind.value,
        "tenant": asked.tenant,
        "session": asked.session,
        "requester": asked.requester,
        "reference": asked.reference,
        "legal_basis": asked.legal_basis,
        "confirm": asked.confirm,
    }
