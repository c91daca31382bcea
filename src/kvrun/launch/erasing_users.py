"""Erasing one person in several deployments: a durable request with one parent certificate.

The request lies with the first deployment. Where this process ends early, asking again with the
same reference finds what each deployment did, does what is left, and certifies it once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from kvrun.config import KvrunConfig
from kvrun.erasure.certificate import ChildEntry, ChildOutcome
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.plan import ConfirmationError, Plan, add_tiers
from kvrun.erasure.user_request import UserRequest, UserRequestStore, new_request
from kvrun.errors import KvrunError
from kvrun.launch.erasing import ParentResult, certify_parent, erase, plan_erasure

BETWEEN_TOKENS = "."
"""What the tokens of the deployments' plans are joined with, in the deployments' order."""
_replace = msgspec.structs.replace


class UserErasureOpenError(ErasureError):
    """Some deployment could not erase yet, so nothing is certified over all of them."""


@dataclass(frozen=True, slots=True)
class UserAsked:
    """Who is to be erased, and who asks."""

    workspace: str
    user_id: str
    reference: str
    requester: str
    legal_basis: str = ""

    @property
    def scope(self) -> dict[str, str]:
        """The scope in one deployment, as an operation's arguments."""
        return {"kind": "user", "tenant": self.user_id}


@dataclass(frozen=True, slots=True)
class UserErased:
    """What became of it. ``problems`` say by deployment why it is pending; ``openings`` are by
    certificate id, the parent's first."""

    parent: ParentResult
    children: list[ChildEntry]
    problems: dict[str, str]
    openings: dict[str, str]


def sum_plans(workspace: str, plans: Sequence[Plan]) -> Plan:
    """One plan over all of them; its token is theirs, joined."""
    return Plan(
        kind=plans[0].kind,
        workspace=workspace,
        deployment=", ".join(plan.deployment for plan in plans),
        tenants=sum(plan.tenants for plan in plans),
        sessions=sum(plan.sessions for plan in plans),
        requests=sum(plan.requests for plan in plans),
        tiers=add_tiers(tier for plan in plans for tier in plan.tiers),
        claim_class=", ".join(sorted({plan.claim_class for plan in plans})),
        token=BETWEEN_TOKENS.join(plan.token for plan in plans),
    )


@contextmanager
def erasing_user(
    configs: Sequence[KvrunConfig],
    asked: UserAsked,
    tokens: Sequence[str],
    *,
    unknown: Mapping[str, str],
    certify_pending: bool,
    now: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Iterator[UserErased]:
    """Erase in each deployment and certify; ``tokens`` confirm the plans, one a deployment.

    The block hands out the openings; once it ends without an error they exist nowhere else.
    ``unknown`` are deployments that cannot be reached, with the reason: they are listed as pending.
    So are those that fail where ``certify_pending``.

    Raises UserErasureOpenError where one failed: the request stays open, and asking again with the
    same reference goes on with it. Raises ErasureError when nothing could be erased at all.
    """
    home = _home(configs, asked)
    store = UserRequestStore(home.layout.user_requests)
    with store.alone():
        request = _knowing(_taken_up(store, asked, now, random_bytes), home, configs)
        store.save(request)
        problems = dict(unknown)
        late: list[tuple[str, str]] = []
        if not request.certifying:
            request, errors = _erase_all(store, request, configs, asked, tokens)
            if errors and not (certify_pending and request.children):
                refused = all(error.status == ConfirmationError.status for error in errors.values())
                if refused and not request.children:
                    store.remove(request)
                raise _still_open(request, errors)
            late = [(_next_id(request, name), name) for name in errors]
            problems |= {name: error.message for name, error in errors.items()}
            known = {child.deployment for child in request.children}
            pending = [name for name in problems if name in errors or name not in known]
            request = _replace(
                request,
                certifying=True,
                children=[
                    *request.children,
                    *(
                        ChildEntry(deployment=name, outcome=ChildOutcome.PENDING)
                        for name in sorted(pending)
                    ),
                ],
            )
            store.save(request)
        yield UserErased(
            parent=_certify(home, request, asked),
            children=request.children,
            problems={
                child.deployment: problems.get(child.deployment, "it was not erased when asked")
                for child in request.children
                if child.outcome is ChildOutcome.PENDING
            },
            openings=_openings(request, asked, late),
        )
        store.remove(request)


def open_user_requests(config: KvrunConfig) -> list[UserRequest]:
    """Requests that began in this deployment and are not finished."""
    return UserRequestStore(config.layout.user_requests).all()


def _home(configs: Sequence[KvrunConfig], asked: UserAsked) -> KvrunConfig:
    """The deployment that has the request: the first one, unless it began elsewhere."""
    for config in configs:
        store = UserRequestStore(config.layout.user_requests)
        if store.find(asked.workspace, asked.user_id, asked.reference):
            return config
    return configs[0]


def _taken_up(
    store: UserRequestStore,
    asked: UserAsked,
    now: Callable[[], float],
    random_bytes: Callable[[int], bytes],
) -> UserRequest:
    found = store.find(asked.workspace, asked.user_id, asked.reference)
    if found is not None and found.children:
        return found
    fresh = new_request(
        asked.workspace,
        asked.user_id,
        asked.reference,
        requester=asked.requester,
        legal_basis=asked.legal_basis,
        now=now(),
        random_bytes=random_bytes,
    )
    if found is None:
        return fresh
    # Nothing is known to be done, but an erasure may have begun: its id has to stay.
    return _replace(fresh, id=found.id, seed=found.seed, whose=found.whose)


def _knowing(
    request: UserRequest, home: KvrunConfig, configs: Sequence[KvrunConfig]
) -> UserRequest:
    """With the workspaces that the certificates will name: each daemon knows its own only."""
    found = {config.deployment.name: config.deployment.workspace for config in configs}
    own = {"": home.deployment.workspace}
    return _replace(request, workspaces={**request.workspaces, **found, **own})


def _erase_all(
    store: UserRequestStore,
    request: UserRequest,
    configs: Sequence[KvrunConfig],
    asked: UserAsked,
    tokens: Sequence[str],
) -> tuple[UserRequest, dict[str, KvrunError]]:
    """Erase in each; what failed, by deployment."""
    errors: dict[str, KvrunError] = {}
    for config, token in zip(configs, tokens, strict=True):
        name, found = config.deployment.name, []
        try:
            for child in _children(config, request, asked, token):
                found.append(child)
        except KvrunError as error:
            errors[name] = error
        if found:
            request = request.with_children(name, found)
            store.save(request)
    return request, errors


def _children(
    config: KvrunConfig, request: UserRequest, asked: UserAsked, token: str
) -> Iterator[ChildEntry]:
    """One, unless the person came back since a request that was cut short."""
    attempt, again = 0, True
    while again:
        name = config.deployment.name
        erasure_id = request.erasure_id(name, attempt)
        wanted = {
            **asked.scope,
            "requester": request.requester,
            "reference": request.reference,
            "legal_basis": request.legal_basis,
            "confirm": token,
            "id": erasure_id,
            "salt": request.salt(erasure_id).hex(),
        }
        done = erase(config, wanted, offline=True)
        yield ChildEntry(
            deployment=name,
            outcome=ChildOutcome.ERASED if done.erased else ChildOutcome.NOTHING_HELD,
            certificate_id=done.id,
            payload_sha256=done.digest,
        )
        attempt, again = attempt + 1, done.earlier and _holds(config, asked)


def _holds(config: KvrunConfig, asked: UserAsked) -> bool:
    plan = plan_erasure(config, asked.scope, offline=True)
    return plan.tenants > 0 or plan.sessions > 0


def _certify(home: KvrunConfig, request: UserRequest, asked: UserAsked) -> ParentResult:
    wanted = {
        **asked.scope,
        "requester": request.requester,
        "reference": request.reference,
        "legal_basis": request.legal_basis,
        "confirmed": "yes",
        "id": request.id,
        "salt": request.salt(request.id).hex(),
        "requested_at": repr(request.requested_at),
    }
    return certify_parent(home, wanted, request.children)


def _openings(
    request: UserRequest, asked: UserAsked, late: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Every certificate's; ``late`` are those that a deployment may still make."""
    made = [(child.certificate_id, child.deployment) for child in request.children]
    wanted = [(request.id, ""), *(item for item in made if item[0]), *late]
    return {made: request.opening(asked.user_id, made, where).decode() for made, where in wanted}


def _next_id(request: UserRequest, deployment: str) -> str:
    attempts = sum(child.deployment == deployment for child in request.children)
    return request.erasure_id(deployment, attempts)


def _still_open(request: UserRequest, errors: Mapping[str, KvrunError]) -> UserErasureOpenError:
    why = "; ".join(f"{name}: {error.message}" for name, error in sorted(errors.items()))
    if not request.children:
        return UserErasureOpenError(
            f"nothing was erased: {why}",
            hint="kvrun erase user ... --plan prints the token to confirm with",
        )
    done = ", ".join(sorted({child.deployment for child in request.children}))
    return UserErasureOpenError(
        f"erased in {done}, but not everywhere: {why}",
        hint="Nothing is certified over all of them yet. Ask again with the same reference, or with"
        " --certify-pending to have the rest listed as pending.",
    )
