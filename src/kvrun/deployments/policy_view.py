"""Which residency policy deployments follow, and which one their daemons run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kvrun.config import KvrunConfig
from kvrun.deployments.model import Deployment, DeploymentState
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.policy.bundle import PolicyFolder, SyncOutcome
from kvrun.policy.compile import BUILTIN_REVISION, NO_REVISION
from kvrun.policy.errors import PolicyError
from kvrun.policy.observed import standings
from kvrun.policy.setup import asked_of, facts_of, folder_of

_TIMEOUT_S = 5.0
_RUNNING = (DeploymentState.RUNNING, DeploymentState.UNHEALTHY, DeploymentState.DRAINING)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLook:
    """How one look at the repository ended; ``at`` in seconds since 1970."""

    at: float
    outcome: str
    revision: str
    problems: tuple[str, ...]


class PolicySweep(msgspec.Struct, frozen=True, kw_only=True):
    """What had to leave since a revision came into force: blocks and bytes by tier, of so many
    sessions; ``done``: nothing is left to be looked for."""

    revision: str
    done: bool
    sessions: int
    blocks: dict[str, int]
    size_bytes: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A deployment's policy. ``running`` is the revision that the daemon has in force, None where
    it cannot be asked; ``drift`` says in words where that is not what should be in force.

    Times in seconds since 1970, None for never. The regions are declared, beside each what was
    seen, empty where nobody said, and how the two stand: unverified, verified or mismatch.
    ``sweep`` is None where the daemon cannot be asked.
    """

    mode: str
    repository: str | None
    ref: str
    region: str
    region_seen: str
    region_standing: str
    storage_region: str
    storage_seen: str
    storage_standing: str
    revision: str
    author: str
    subject: str
    signed_by: str
    activated_at: float | None
    confirmed_at: float | None
    running: str | None
    standing: str
    drift: str
    refused: int | None
    sweep: PolicySweep | None
    last: PolicyLook | None
    history: tuple[PolicyLook, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    """A deployment in the list of a workspace's policies; fields as in ``PolicyView``.

    ``outcome`` is how the last look at the repository ended, empty where there was none.
    """

    deployment: Deployment
    mode: str
    repository: str | None
    ref: str
    region: str
    revision: str
    running: str | None
    drift: str
    outcome: str


class _State(msgspec.Struct):
    revision: str
    standing: str
    refused: int


def policy_view(config: KvrunConfig) -> PolicyView:
    """What is known of a deployment's policy. Raises PolicyError for a file that is damaged."""
    folder, residency = folder_of(config), config.residency
    active, status = folder.active(), folder.status()
    origin = active.origin if active is not None else None
    state = _asked(config, "residency", _State)
    facts, seen = facts_of(config), folder.seen(asked_of(config))
    stands = standings(facts, seen)
    wanted = _wanted(config, folder)
    return PolicyView(
        mode=residency.mode,
        repository=residency.repository,
        ref=residency.ref,
        region=facts.region,
        region_seen=seen.instance,
        region_standing=stands.instance,
        storage_region=residency.storage_region or facts.region,
        storage_seen=seen.storage,
        storage_standing=stands.storage,
        revision=wanted,
        author=origin.author if origin else "",
        subject=origin.subject if origin else "",
        signed_by=origin.signed_by if origin else "",
        activated_at=active.activated_at if active else None,
        confirmed_at=status.confirmed_at or None,
        running=state.revision if state else None,
        standing=state.standing if state else "",
        drift=_drift(wanted, state),
        refused=state.refused if state else None,
        sweep=_asked(config, "residency_sweep", PolicySweep) if state else None,
        last=_look(status.last) if status.last else None,
        history=tuple(_look(outcome) for outcome in status.history),
    )


def policy_line(deployment: Deployment, config: KvrunConfig) -> PolicyLine:
    """What the list says of one; only a running one is asked. Raises PolicyError."""
    folder, residency = folder_of(config), config.residency
    state = None
    if deployment.state in _RUNNING:
        state = _asked(config, "residency", _State)
    last = folder.status().last if residency.repository is not None else None
    wanted = _wanted(config, folder)
    return PolicyLine(
        deployment=deployment,
        mode=residency.mode,
        repository=residency.repository,
        ref=residency.ref,
        region=residency.region,
        revision=wanted,
        running=state.revision if state else None,
        drift=_drift(wanted, state),
        outcome=last.outcome if last else "",
    )


def _asked(config: KvrunConfig, operation: str, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(ask_daemon(config, operation, timeout_s=_TIMEOUT_S), type=kind)
    except (KvrunError, OSError, msgspec.MsgspecError):
        return None


def _wanted(config: KvrunConfig, folder: PolicyFolder) -> str:
    if config.residency.repository is None or config.residency.mode == "off":
        return BUILTIN_REVISION
    try:
        active = folder.active()
    except PolicyError:
        active = None
    return active.origin.revision if active is not None else ""


def _drift(wanted: str, state: _State | None) -> str:
    if state is None or state.revision == (wanted or NO_REVISION):
        return ""
    return f"The instance runs {state.revision}; {wanted or 'nothing'} should be in force."


def _look(outcome: SyncOutcome) -> PolicyLook:
    return PolicyLook(
        at=outcome.at,
        outcome=outcome.outcome,
        revision=outcome.revision,
        problems=outcome.problems,
    )
