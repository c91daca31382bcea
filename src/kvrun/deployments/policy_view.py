"""Which residency policy a deployment follows, and which one its daemon runs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.policy.bundle import PolicyFolder, SyncOutcome
from kvrun.policy.compile import BUILTIN_REVISION, NO_REVISION
from kvrun.policy.errors import PolicyError
from kvrun.policy.setup import facts_of, folder_of

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLook:
    """How one look at the repository ended; ``at`` in seconds since 1970."""

    at: float
    outcome: str
    revision: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A deployment's policy. ``running`` is the revision that the daemon has in force, None where
    it cannot be asked; ``drift`` says in words where that is not what should be in force.

    Times in seconds since 1970, None for never. The regions are declared, not observed.
    """

    mode: str
    repository: str | None
    ref: str
    region: str
    storage_region: str
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
    last: PolicyLook | None
    history: tuple[PolicyLook, ...]


class _State(msgspec.Struct):
    revision: str
    standing: str
    refused: int


def policy_view(config: KvrunConfig) -> PolicyView:
    """What is known of a deployment's policy. Raises PolicyError for a file that is damaged."""
    folder, residency = folder_of(config), config.residency
    active, status = folder.active(), folder.status()
    origin = active.origin if active is not None else None
    state = _state(config)
    facts = facts_of(config)
    wanted = _wanted(config, folder)
    return PolicyView(
        mode=residency.mode,
        repository=residency.repository,
        ref=residency.ref,
        region=facts.region,
        storage_region=residency.storage_region or facts.region,
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
        last=_look(status.last) if status.last else None,
        history=tuple(_look(outcome) for outcome in status.history),
    )


def _state(config: KvrunConfig) -> _State | None:
    try:
        return msgspec.json.decode(
            ask_daemon(config, "residency", timeout_s=_TIMEOUT_S), type=_State
        )
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
