"""What an erasure would reach, counted, and the token that confirms the count. Pure.

A session is erased at once. A wider scope wants the token that its plan came with: it names the
scope and what was counted, it is authenticated with a key of the deployment, and it holds for a
few minutes. A scope that has grown well beyond the count is planned anew instead of erased.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from kvrun.claims.claim import decode_base64url, encode_base64url
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.commitment import ErasedSubject
from kvrun.erasure.errors import ErasureError

TOKEN_LIFETIME_S = 600.0
AGREED_LIFETIME_S = 25 * 3600.0
"""How old the token of a plan may be to which a second person agreed: approvals hold for a day."""
MAX_REFS = 10_000
"""The tenants that one erasure in a deployment can name by reference."""
TOKEN_KEY_BYTES = 32
_GROWTH = 1.1
_FREE_GROWTH = 10
_MAX_TOKEN = 512
_MAC_BYTES = 16
_ID_CHARS = 128
_REF_CHARS = 32


class ScopeNotServedError(ErasureError):
    """Nothing here can erase a scope of that kind."""

    exit_code = 2
    status = 400


class ConfirmationError(ErasureError):
    """A wider scope needs a token from a fresh plan, and the given one does not do."""

    exit_code = 2
    status = 409


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """What is to be erased of one deployment. A user is a tenant that others know by name.

    ``TENANTS`` are named by the log's references, in rising order; ``tenants`` are their ids once
    the deployment has looked them up. ``name`` is what was asked for where that is no id: a label,
    or a workspace or an account, of which a parent certificate is.
    """

    kind: RequestKind
    tenant: str = ""
    session: str = ""
    refs: tuple[str, ...] = ()
    name: str = ""
    tenants: frozenset[str] = frozenset()

    @property
    def ids(self) -> frozenset[str] | None:
        """The tenants in it; None: all of the deployment."""
        if self.kind is RequestKind.DEPLOYMENT:
            return None
        return frozenset({self.tenant}) if self.tenant else self.tenants

    def covers(self, tenant: str, session: str) -> bool:
        """Whether a session lies in it."""
        ids = self.ids
        return ids is None or (tenant in ids and self.session in ("", session))

    def subject(self, workspace: str, deployment: str) -> ErasedSubject:
        """Whom or what it erases there."""
        ids = {RequestKind.SESSION: self.session, RequestKind.DEPLOYMENT: deployment}
        return ErasedSubject(
            kind=self.kind,
            id=self.name or ids.get(self.kind, self.tenant),
            workspace=workspace,
            deployment=deployment,
            tenant=self.tenant if self.session else "",
        )

    def overlaps(self, other: "ErasureScope") -> bool:
        """Whether some session could lie in both."""
        mine, theirs = self.ids, other.ids
        if mine is None or theirs is None:
            return True
        same = "" in (self.session, other.session) or self.session == other.session
        return bool(mine & theirs) and same


class TierCount(msgspec.Struct, frozen=True, kw_only=True):
    """Sealed blocks on one tier and their bytes."""

    tier: str
    blocks: int
    bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request would reach now. ``token`` is empty where none is needed."""

    kind: RequestKind
    workspace: str
    deployment: str
    tenants: int
    sessions: int
    requests: int
    tiers: list[TierCount]
    claim_class: str
    token: str = ""


def erasure_scope(
    kind: str, tenant: str = "", session: str = "", *, refs: Sequence[str] = (), name: str = ""
) -> ErasureScope:
    """The scope of a request in one deployment. Raises ScopeNotServedError."""
    found = _kind(kind)
    if found is RequestKind.TENANTS and refs:
        _check_name(name)
        return ErasureScope(found, refs=_checked_refs(refs), name=name)
    if found in (RequestKind.WORKSPACE, RequestKind.ACCOUNT, RequestKind.TENANTS):
        raise ScopeNotServedError(
            f"erasing {_ARTICLES[found]} needs the control plane, which knows every deployment in"
            " it; this is one deployment's daemon",
            hint=f"`kvrun erase {found}` asks the control plane.",
        )
    if found is RequestKind.DEPLOYMENT:
        return ErasureScope(found)
    _check_id(tenant, "tenant")
    if found is not RequestKind.SESSION:
        return ErasureScope(found, tenant)
    _check_id(session, "session")
    return ErasureScope(found, tenant, session)


def parent_scope(kind: str, tenant: str = "", name: str = "") -> ErasureScope:
    """What a certificate over several deployments is about. Raises ScopeNotServedError."""
    found = _kind(kind)
    if found is RequestKind.USER:
        return erasure_scope(kind, tenant)
    if found not in (RequestKind.WORKSPACE, RequestKind.ACCOUNT, RequestKind.TENANTS):
        raise ScopeNotServedError(f"{_ARTICLES[found]} is not erased in several deployments")
    _check_name(name)
    return ErasureScope(found, name=name)


def needs_token(scope: ErasureScope) -> bool:
    """Whether a request for it has to be confirmed."""
    return scope.kind is not RequestKind.SESSION


def make_token(key: bytes, scope: ErasureScope, *, tenants: int, sessions: int, now: float) -> str:
    """The token of a plan; ``key`` is 32 bytes, ``now`` in seconds since 1970."""
    body = msgspec.msgpack.encode(_Token(_digest(scope), tenants, sessions, int(now)))
    return encode_base64url(_mac(key, body) + body).decode()


def check_token(
    key: bytes,
    token: str,
    scope: ErasureScope,
    *,
    tenants: int,
    sessions: int,
    now: float,
    lifetime_s: float = TOKEN_LIFETIME_S,
) -> None:
    """Refuse a token that is not of this scope, has expired, or counted much less than there is.

    Raises ConfirmationError.
    """
    again = f"plan it again: kvrun erase {scope.kind} ... --plan"
    if not token:
        raise ConfirmationError(
            f"erasing {_ARTICLES[scope.kind]} wants the token of its plan", hint=again
        )
    counted = _open(key, token)
    if counted is None:
        raise ConfirmationError("the confirmation token is not one of this deployment", hint=again)
    if counted.scope != _digest(scope):
        raise ConfirmationError("the confirmation token is for another scope", hint=again)
    if not counted.issued_at <= now + 1 or now - counted.issued_at > lifetime_s:
        raise ConfirmationError(
            f"the confirmation token is older than {lifetime_s:.0f} seconds", hint=again
        )
    for what, before, after in (
        ("tenants", counted.tenants, tenants),
        ("sessions", counted.sessions, sessions),
    ):
        if after > max(before * _GROWTH, before + _FREE_GROWTH):
            raise ConfirmationError(
                f"the plan counted {before} {what} and there are {after} now", hint=again
            )


def add_tiers(counts: Iterable[TierCount]) -> list[TierCount]:
    """One count a tier, in the order in which the tiers came first."""
    totals: dict[str, tuple[int, int]] = {}
    for count in counts:
        blocks, size = totals.get(count.tier, (0, 0))
        totals[count.tier] = (blocks + count.blocks, size + count.bytes)
    return [
        TierCount(tier=tier, blocks=blocks, bytes=size) for tier, (blocks, size) in totals.items()
    ]


class _Token(msgspec.Struct, frozen=True, array_like=True):
    scope: bytes
    tenants: int
    sessions: int
    issued_at: int


def _open(key: bytes, token: str) -> _Token | None:
    if len(token) > _MAX_TOKEN:
        return None
    raw = decode_base64url(token.strip())
    if raw is None or not hmac.compare_digest(raw[:_MAC_BYTES], _mac(key, raw[_MAC_BYTES:])):
        return None
    try:
        return msgspec.msgpack.decode(raw[_MAC_BYTES:], type=_Token)
    except msgspec.MsgspecError:
        return None


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"kvrun/erasure-plan/v1\0" + body, sha256)[:_MAC_BYTES]


def _digest(scope: ErasureScope) -> bytes:
    named = (scope.kind.value, scope.tenant, scope.session, scope.name, scope.refs)
    return sha256(msgspec.msgpack.encode(named)).digest()


def _kind(kind: str) -> RequestKind:
    try:
        return RequestKind(kind)
    except ValueError:
        raise ScopeNotServedError(
            f"there is no erasure of a {kind!r}", hint="known are " + ", ".join(RequestKind)
        ) from None


def _checked_refs(refs: Sequence[str]) -> tuple[str, ...]:
    if len(refs) > MAX_REFS:
        raise ScopeNotServedError(
            f"{len(refs)} tenants are too many for one erasure",
            hint=f"{MAX_REFS} are allowed: erase by a narrower label, or the whole deployment.",
        )
    for ref in refs:
        if len(ref) != _REF_CHARS or not set(ref) <= set("0123456789abcdef"):
            raise ScopeNotServedError(
                f"{ref[:40]!r} is no reference of a tenant",
                hint=f"it has {_REF_CHARS} hexadecimal digits, as in the audit log",
            )
    return tuple(sorted(set(refs)))


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= 2 * _ID_CHARS or not name.isprintable():
        raise ScopeNotServedError(
            f"{name[:40]!r} is no name to erase by",
            hint=f"1 to {2 * _ID_CHARS} printable characters are allowed",
        )


def _check_id(value: str, what: str) -> None:
    if not 1 <= len(value) <= _ID_CHARS or not all("!" <= char <= "~" for char in value):
        raise ScopeNotServedError(
            f"{value[:40]!r} is no {what} id",
            hint=f"1 to {_ID_CHARS} printable ASCII characters without spaces are allowed",
        )


_ARTICLES = {
    RequestKind.SESSION: "a session",
    RequestKind.TENANT: "a tenant",
    RequestKind.TENANTS: "tenants by label",
    RequestKind.USER: "a user",
    RequestKind.DEPLOYMENT: "a deployment",
    RequestKind.WORKSPACE: "a workspace",
    RequestKind.ACCOUNT: "an account",
}
