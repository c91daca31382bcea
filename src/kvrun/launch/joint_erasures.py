"""Erasing in several deployments at once: a durable request with one parent certificate.

The request lies with the first deployment. Where this process ends early, asking again with the
same reference finds what each deployment did, does what is left, and certifies it once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from kvrun.config import KvrunConfig
from kvrun.erasure.certificate import ChildEntry, ChildOutcome, RequestKind
from kvrun.erasure.commitment import ErasedSubject
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.joint_request import JointRequest, JointRequestStore, new_request
from kvrun.erasure.plan import ConfirmationError, ErasureScope
from kvrun.errors import KvrunError
from kvrun.launch.erasing import ParentResult, certify_parent, erase, plan_erasure

BETWEEN_TOKENS = "."
"""What the tokens of the deployments' plans are joined with, in the deployments' order."""
_replace = msgspec.structs.replace


class JointErasureOpenError(ErasureError):
    """Some deployment could not erase yet, so nothing is certified over all of them."""

    status = 409


@dataclass(frozen=True, slots=True)
class JointAsked:
    """What is to be erased, and who asks. ``subject`` is a user's id, the label of tenants, or the
    name of a workspace or an account; ``workspace`` is where it was asked.

    ``agreed`` is the digest of the plan where a second person agreed to it: its tokens then hold
    for as long as an approval.
    """

    workspace: str
    subject: str
    reference: str
    requester: str
    legal_basis: str = ""
    kind: RequestKind = RequestKind.USER
    agreed: str = ""

    @property
    def scope(self) -> dict[str, str]:
        """Of a user or the whole of a deployment: the scope there, as an operation's arguments."""
        if self.kind is RequestKind.USER:
            return {"kind": "user", "tenant": self.subject}
        return {"kind": "deployment"}

    @property
    def parent(self) -> dict[str, str]:
        """What the parent certificate is about, as an operation's arguments."""
        named = "tenant" if self.kind is RequestKind.USER else "name"
        return {"kind": self.kind.value, named: self.subject}

    def subject_of(self, workspace: str, deployment: str = "") -> ErasedSubject:
        """Whom the parent is about, or a deployment's own certificate."""
        if self.kind is RequestKind.USER:
            scope = ErasureScope(self.kind, self.subject)
        elif deployment and self.kind is not RequestKind.TENANTS:
            scope = ErasureScope(RequestKind.DEPLOYMENT)
        else:
            scope = ErasureScope(self.kind, name=self.subject)
        return scope.subject(workspace, deployment)


@dataclass(frozen=True, slots=True)
class Target:
    """What is erased in one deployment: the scope as an operation's arguments, and its token."""

    config: KvrunConfig
    scope: Mapping[str, str]
    token: str


@dataclass(frozen=True, slots=True)
class JointErased:
    """What became of it. ``problems`` say by deployment why it is pending; ``openings`` are by
    certificate id, the parent's first."""

    parent: ParentResult
    children: list[ChildEntry]
    problems: dict[str, str]
    openings: dict[str, str]


def targets_of(
    configs: Sequence[KvrunConfig], asked: JointAsked, tokens: Sequence[str]
) -> list[Target]:
    """The same scope in each deployment; ``tokens`` confirm the plans, one a deployment."""
    pairs = zip(configs, tokens, strict=True)
    return [Target(config, asked.scope, token) for config, token in pairs]


@contextmanager
def erasing_jointly(
    targets: Sequence[Target],
    asked: JointAsked,
    *,
    unknown: Mapping[str, str],
    certify_pending: bool,
    now: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Iterator[JointErased]:
    """Erase in each deployment and certify.

    The block hands out the openings; once it ends without an error they exist nowhere else.
    ``unknown`` are deployments that cannot be reached, with the reason: they are listed as pending.
    So are those that fail where ``certify_pending``.

    Raises JointErasureOpenError where one failed: the request stays open, and asking again with the
    same reference goes on with it. Raises ErasureError when nothing could be erased at all.
    """
    home = _home([target.config for target in targets], asked)
    store = JointRequestStore(home.layout.user_requests)
    with store.alone():
        request = _knowing(_taken_up(store, asked, now, random_bytes), home, targets)
        store.save(request)
        problems = dict(unknown)
        late: list[tuple[str, str]] = []
        if not request.certifying:
            request, errors = _erase_all(store, request, targets)
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
        yield JointErased(
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


def open_requests(config: KvrunConfig) -> list[JointRequest]:
    """Requests that began in this deployment and are not finished."""
    return JointRequestStore(config.layout.user_requests).all()


def goes_on(configs: Collection[KvrunConfig], asked: JointAsked) -> bool:
    """Whether this was begun before, under the agreement that is asked with."""
    found = (_found(config, asked) for config in configs)
    return any(item is not None and item.agreed == asked.agreed != "" for item in found)


def _home(configs: Sequence[KvrunConfig], asked: JointAsked) -> KvrunConfig:
    """The deployment that has the request: the first one, unless it began elsewhere."""
    for config in configs:
        if _found(config, asked):
            return config
    return configs[0]


def _found(config: KvrunConfig, asked: JointAsked) -> JointRequest | None:
    store = JointRequestStore(config.layout.user_requests)
    return store.find(asked.kind, asked.workspace, asked.subject, asked.reference)


def _taken_up(
    store: JointRequestStore,
    asked: JointAsked,
    now: Callable[[], float],
    random_bytes: Callable[[int], bytes],
) -> JointRequest:
    found = store.find(asked.kind, asked.workspace, asked.subject, asked.reference)
    if found is not None and found.children:
        return _replace(found, agreed=asked.agreed)
    fresh = new_request(
        asked.kind,
        asked.workspace,
        asked.subject,
        asked.reference,
        requester=asked.requester,
        legal_basis=asked.legal_basis,
        now=now(),
        random_bytes=random_bytes,
    )
    fresh = _replace(fresh, agreed=asked.agreed)
    if found is None:
        return fresh
    # Nothing is known to be done, but an erasure may have begun: its id has to stay.
    return _replace(fresh, id=found.id, seed=found.seed, whose=found.whose)


def _knowing(request: JointRequest, home: KvrunConfig, targets: Sequence[Target]) -> JointRequest:
    """With the workspaces that the certificates will name: each daemon knows its own only."""
    known = (target.config.deployment for target in targets)
    found = {deployment.name: deployment.workspace for deployment in known}
    # An account is in no workspace.
    own = {"": "" if request.kind is RequestKind.ACCOUNT else home.deployment.workspace}
    return _replace(request, workspaces={**request.workspaces, **found, **own})


def _erase_all(
    store: JointRequestStore, request: JointRequest, targets: Sequence[Target]
) -> tuple[JointRequest, dict[str, KvrunError]]:
    """Erase in each; what failed, by deployment."""
    errors: dict[str, KvrunError] = {}
    for target in targets:
        name, found = target.config.deployment.name, []
        try:
            for child in _children(target, request):
                found.append(child)
        except KvrunError as error:
            errors[name] = error
        if found:
            request = request.with_children(name, found)
            store.save(request)
    return request, errors


def _children(target: Target, request: JointRequest) -> Iterator[ChildEntry]:
    """One, unless there were new keys since a request that was cut short."""
    attempt, again = 0, True
    while again:
        name = target.config.deployment.name
        erasure_id = request.erasure_id(name, attempt)
        wanted = {
            **target.scope,
            "requester": request.requester,
            "reference": request.reference,
            "legal_basis": request.legal_basis,
            "confirm": target.token,
            "agreed": "yes" if request.agreed else "",
            "id": erasure_id,
            "salt": request.salt(erasure_id).hex(),
        }
        done = erase(target.config, wanted, offline=True)
        yield ChildEntry(
            deployment=name,
            outcome=ChildOutcome.ERASED if done.erased else ChildOutcome.NOTHING_HELD,
            certificate_id=done.id,
            payload_sha256=done.digest,
        )
        attempt, again = attempt + 1, done.earlier and _holds(target)


def _holds(target: Target) -> bool:
    plan = plan_erasure(target.config, target.scope, offline=True)
    return plan.tenants > 0 or plan.sessions > 0


def _certify(home: KvrunConfig, request: JointRequest, asked: JointAsked) -> ParentResult:
    wanted = {
        **asked.parent,
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
    request: JointRequest, asked: JointAsked, late: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Every certificate's; ``late`` are those that a deployment may still make."""
    made = [(child.certificate_id, child.deployment) for child in request.children]
    wanted = [(request.id, ""), *(item for item in made if item[0]), *late]
    return {
        made: request.opening(asked.subject_of(_workspace(request, where), where), made).decode()
        for made, where in wanted
    }


def _workspace(request: JointRequest, deployment: str) -> str:
    return request.workspaces.get(deployment, request.workspace)


def _next_id(request: JointRequest, deployment: str) -> str:
    attempts = sum(child.deployment == deployment for child in request.children)
    return request.erasure_id(deployment, attempts)


def _still_open(request: JointRequest, errors: Mapping[str, KvrunError]) -> JointErasureOpenError:
    why = "; ".join(f"{name}: {error.message}" for name, error in sorted(errors.items()))
    if not request.children:
        return JointErasureOpenError(
            f"nothing was erased: {why}",
            hint="the same with --plan gives the token to confirm with",
        )
    done = ", ".join(sorted({child.deployment for child in request.children}))
    return JointErasureOpenError(
        f"erased in {done}, but not everywhere: {why}",
        hint="Nothing is certified over all of them yet. Ask again with the same reference, or with"
        " --certify-pending to have the rest listed as pending.",
    )
