"""Erasing in several deployments for somebody: a person, tenants with a label, a workspace, an
account.

Evidence comes first where whole deployments are erased: every log is collected up to now, then the
keys go, each deployment certifies, and one certificate lists them all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import ForbiddenError
from kvrun.accounts.permissions import Permission, may, require
from kvrun.accounts.records import Approval
from kvrun.api.erasures import Agreed, ErasureNotFoundError, Reasons
from kvrun.api.joint_targets import Chosen, DeploymentPlan, choose, planned, reachable
from kvrun.api.services import Services, requester
from kvrun.control.collector import CollectOutcome
from kvrun.deployments.model import Deployment
from kvrun.erasure.certificate import ChildOutcome, RequestKind
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.plan import ConfirmationError, Plan, ScopeNotServedError
from kvrun.errors import KvrunError
from kvrun.launch import erasing
from kvrun.launch.joint_erasures import JointAsked, JointErased, erasing_jointly, goes_on

_log = logging.getLogger(__name__)
_BETWEEN_TOKENS = ","
_AFTER_ID = ":"
_WHOLE = {"kind": RequestKind.DEPLOYMENT.value}


class EvidenceFirstError(ErasureError):
    """A log cannot be collected, so nothing is erased yet."""

    status = 409


@dataclass(frozen=True, slots=True)
class JointScope:
    """A workspace, the account that owns it, or those tenants in it that have a label.

    ``label`` is ``name=value``. ``also`` may act in other workspaces of the account: an API key is
    of one only. Raises ScopeNotServedError.
    """

    kind: RequestKind
    label: str = ""
    also: tuple[Actor, ...] = ()

    def __post_init__(self) -> None:
        """Look at the label."""
        name, equals, value = self.label.partition("=")
        if self.kind is RequestKind.TENANTS and not (name and equals and value):
            raise ScopeNotServedError(
                f"{self.label[:80]!r} is no label to erase by", hint="Such as customer=acme."
            )

    @property
    def operation(self) -> str:
        """What approvals call it."""
        return f"erase_{self.kind}"


@dataclass(frozen=True, slots=True)
class JointPlan:
    """What an erasure would reach. ``subject`` is what its certificate will be about."""

    subject: str
    deployments: tuple[DeploymentPlan, ...]
    needs_approval: bool

    @property
    def plans(self) -> list[Plan]:
        """Those that there are."""
        return [item.plan for item in self.deployments if item.plan is not None]

    @property
    def token(self) -> str:
        """The plans' tokens with their deployments."""
        return _BETWEEN_TOKENS.join(
            f"{item.deployment.id}{_AFTER_ID}{item.plan.token}"
            for item in self.deployments
            if item.plan is not None
        )


def plan_user(
    services: Services, actor: Actor, workspace_id: str, user_id: str
) -> tuple[DeploymentPlan, ...]:
    """Count what erasing one person everywhere in the workspace would reach."""
    require(actor, Permission.ERASE, workspace_id)
    scope = {"kind": RequestKind.USER.value, "tenant": user_id}
    found = ((item, scope) for item in reachable(services, workspace_id))
    return tuple(planned(services, *part) for part in found)


@contextmanager
def erasing_person(
    services: Services,
    actor: Actor,
    workspace_id: str,
    user_id: str,
    *,
    confirm: Mapping[str, str],
    reasons: Reasons,
    certify_pending: bool,
) -> Iterator[JointErased]:
    """Erase one person in the deployments of the workspace, with one certificate over all.

    The block hands out the openings: where it fails, asking again makes them again.
    ``confirm`` are the plans' tokens by deployment id. Deployments without one are listed as
    pending, and so is one whose configuration cannot be read where ``certify_pending``; it is
    refused else. Raises SameNameError, and JointErasureOpenError where one failed: ask again with
    the same reference.
    """
    require(actor, Permission.ERASE, workspace_id)
    asked = JointAsked(
        workspace_id, user_id, reasons.reference, requester(actor), reasons.legal_basis
    )
    found = [(item, asked.scope) for item in reachable(services, workspace_id)]
    chosen, unknown = choose(services, found, confirm, certify_pending)
    targets = [target for _, target in chosen]
    with erasing_jointly(targets, asked, unknown=unknown, certify_pending=certify_pending) as done:
        yield done


def plan_joint(services: Services, actor: Actor, workspace_id: str, scope: JointScope) -> JointPlan:
    """Count what it would reach; nothing is erased. Stopped deployments too.

    Raises ErasureNotFoundError where there is nothing to ask.
    """
    places = _places(services, actor, workspace_id, scope)
    found = _found(services, places, scope)
    return JointPlan(
        _subject(services, actor, workspace_id, scope),
        tuple(planned(services, *part) for part in found),
        any(services.accounts.approval_needed(who, place) for place, who in places.items()),
    )


def ask_joint_approval(
    services: Services, actor: Actor, workspace_id: str, scope: JointScope, token: str
) -> list[Approval]:
    """Ask a second person to agree to the plan with that token, in every workspace it reaches.

    Raises ConfirmationError for what is no token of such a plan, or too old.
    """
    places = _places(services, actor, workspace_id, scope)
    tokens = _tokens(token)
    tenants = sessions = 0
    for item, wanted in _found(services, places, scope):
        if item.id in tokens:
            config = services.deployments.config_of(item.id)
            confirmed = {**wanted, "confirm": tokens.pop(item.id)}
            counted = erasing.plan_erasure(config, confirmed, offline=True)
            tenants, sessions = tenants + counted.tenants, sessions + counted.sessions
    if tokens:
        raise ConfirmationError("the token is another plan's", hint="Plan it again.")
    return [
        services.accounts.ask_approval(
            who,
            place,
            scope.operation,
            _digest(token),
            tenants=tenants,
            sessions=sessions,
            subject=scope.label,
            token=token,
        )
        for place, who in places.items()
        if services.accounts.approval_needed(who, place)
    ]


def joint_agreed(services: Services, actor: Actor, workspace_id: str, scope: JointScope) -> Agreed:
    """The plan that second persons agreed to, in every workspace that it reaches and needs it."""
    places = _places(services, actor, workspace_id, scope)
    found = _found(services, places, scope)
    tokens = _agreed_tokens(services, places, scope)
    outgrown = ""
    for token in tokens:
        parts = _tokens(token)
        try:
            for item, wanted in found:
                if item.id in parts:
                    config = services.deployments.config_of(item.id)
                    asked = {**wanted, "confirm": parts[item.id], "agreed": "yes"}
                    erasing.plan_erasure(config, asked, offline=True)
        except ConfirmationError as error:
            outgrown = outgrown or error.message
            continue
        return Agreed(token)
    return Agreed(outgrown=outgrown)


@contextmanager
def erasing_scope(
    services: Services,
    actor: Actor,
    workspace_id: str,
    scope: JointScope,
    *,
    confirm: str,
    reasons: Reasons,
    certify_pending: bool,
) -> Iterator[JointErased]:
    """Collect the logs, erase, and certify, with one certificate over all.

    The block hands out the openings. ``confirm`` is the plan's token; deployments that it does not
    name are listed as pending. Raises ConfirmationError, ApprovalNeededError, EvidenceFirstError,
    SameNameError, and JointErasureOpenError where one failed: ask again with the same reference.
    """
    places = _places(services, actor, workspace_id, scope)
    found = _found(services, places, scope)
    chosen, unknown = choose(services, found, _tokens(confirm), certify_pending)
    asked = JointAsked(
        workspace_id,
        _subject(services, actor, workspace_id, scope),
        reasons.reference,
        requester(actor),
        reasons.legal_basis,
        scope.kind,
        _digest(confirm),
    )
    configs = [target.config for _, target in chosen]
    approvals: list[Approval] = []
    if not goes_on(configs, asked):
        approvals = _take_approvals(services, places, scope, asked.agreed)
        if not approvals:
            # Nobody agreed to a plan, so its tokens have to be fresh.
            asked = replace(asked, agreed="")
    whole = scope.kind is not RequestKind.TENANTS
    try:
        if whole:
            _collect(services, chosen)
        with erasing_jointly(
            [target for _, target in chosen],
            asked,
            unknown=unknown,
            certify_pending=certify_pending,
        ) as done:
            _forget(services, chosen, done)
            yield done
    except Exception:
        if approvals and not goes_on(configs, asked):
            for approval in approvals:
                services.accounts.give_back_approval(approval)
        raise


def _places(
    services: Services, actor: Actor, workspace_id: str, scope: JointScope
) -> dict[str, Actor]:
    """The workspaces that it reaches, each with who may erase more than one tenant there."""
    require(actor, Permission.ERASE_WIDE, workspace_id)
    if scope.kind is not RequestKind.ACCOUNT:
        return {workspace_id: actor}
    found = services.accounts.workspaces_of_account(workspace_id)
    allowed = {
        item.id: who
        for item in found
        for who in reversed((actor, *scope.also))
        if may(who, Permission.ERASE_WIDE, item.id)
    }
    if len(allowed) < len(found):
        raise ForbiddenError(
            f"the account has {len(found)} workspaces, and in {len(found) - len(allowed)} of them"
            " you may not do this",
            hint="It needs erase_wide in each: an API key is of one workspace, so add the others'.",
        )
    return allowed


def _subject(services: Services, actor: Actor, workspace_id: str, scope: JointScope) -> str:
    if scope.kind is RequestKind.ACCOUNT:
        return services.accounts.get_workspace(actor, workspace_id).account_id
    return scope.label or workspace_id


def _found(
    services: Services, places: Iterable[str], scope: JointScope
) -> list[tuple[Deployment, dict[str, str]]]:
    """The deployments it reaches, each with the scope there as an operation's arguments."""
    reached = [item for place in places for item in reachable(services, place)]
    if scope.kind is not RequestKind.TENANTS:
        found = [(item, _WHOLE) for item in reached]
    else:
        name, _, value = scope.label.partition("=")
        labelled = services.deployments.tenants.labelled
        kind = {"kind": scope.kind.value, "name": scope.label}
        found = [
            (item, {**kind, "refs": ",".join(refs)})
            for item in reached
            if (refs := labelled(item.id, name, value))
        ]
    if not found:
        raise ErasureNotFoundError(
            f"no end user there has the label {scope.label!r}"
            if scope.kind is RequestKind.TENANTS
            else "nothing is held: no deployment there was ever started",
            hint="Nothing was erased, and there is nothing to certify.",
        )
    return found


def _agreed_tokens(services: Services, places: Mapping[str, Actor], scope: JointScope) -> list[str]:
    """Tokens of plans with every word that they need, the latest first."""
    now = services.now()
    common: list[str] | None = None
    for place, who in places.items():
        if not services.accounts.approval_needed(who, place):
            continue
        usable = [
            item.token
            for item in services.accounts.list_approvals(who, place)
            if (item.operation, item.subject) == (scope.operation, scope.label)
            and item.token
            and item.usable(who.person, now)
        ]
        common = [token for token in usable if common is None or token in common]
    return common or []


def _take_approvals(
    services: Services, places: Mapping[str, Actor], scope: JointScope, plan: str
) -> list[Approval]:
    """Use the approvals of every workspace, or none. Raises ApprovalNeededError."""
    taken: list[Approval] = []
    try:
        for place, who in places.items():
            found = services.accounts.take_approval(who, place, scope.operation, plan)
            taken += [found] if found is not None else []
    except KvrunError:
        for approval in taken:
            services.accounts.give_back_approval(approval)
        raise
    return taken


def _collect(services: Services, chosen: Iterable[Chosen]) -> None:
    """Every log up to now; one whose collection an alert stopped stays where it is."""
    for item, target in chosen:
        if not target.config.layout.audit.is_dir():
            continue
        try:
            logs = services.audit.collect_now(item.id).logs
        except (KvrunError, OSError) as error:
            raise _evidence_first(item, str(error)) from error
        for log in logs:
            if log.outcome is CollectOutcome.UNAVAILABLE:
                raise _evidence_first(item, log.message)


def _evidence_first(item: Deployment, why: str) -> EvidenceFirstError:
    return EvidenceFirstError(
        f"the log of {item.spec.name} cannot be collected yet: {why}",
        hint="Nothing was erased. Its log is evidence, so it is collected first: ask again.",
    )


def _forget(services: Services, chosen: Iterable[Chosen], done: JointErased) -> None:
    """Forget what was said of tenants. Their keys are gone, so a failure keeps no opening back."""
    erased = {item.deployment for item in done.children if item.outcome is ChildOutcome.ERASED}
    for item, target in chosen:
        if target.config.deployment.name in erased:
            refs = target.scope.get("refs", "")
            try:
                services.deployments.tenants.forget(item.id, refs.split(",") if refs else None)
            except Exception:
                _log.exception("what was said of erased tenants of %s is still kept", item.id)


def _tokens(token: str) -> dict[str, str]:
    """The plans' tokens by deployment id."""
    parts = (part.partition(_AFTER_ID) for part in token.split(_BETWEEN_TOKENS))
    return {place: found for place, _, found in parts if place and found}


def _digest(token: str) -> str:
    """What approvals call a plan: its token is too long for them."""
    return f"plan-{sha256(token.encode()).hexdigest()}"
