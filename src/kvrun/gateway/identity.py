"""From a request to (tenant, session): a pure function, the same in proxy and middleware."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from kvrun.config.gateway import ENGINE_HEADERS, GatewaySettings, TenantSource
from kvrun.gateway.errors import GatewayError

DEFAULT_TENANT = "default"
DEFAULT_SESSION = "default"
MAX_ID_CHARS = 128

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class IdentityPolicy:
    """The settings that decide who a request belongs to."""

    source: TenantSource
    tenant_header: str = "X-KV-Tenant"
    session_header: str = "X-KV-Session"
    multi_tenant: bool = False
    mixed: bool = False


class Principal(msgspec.Struct, frozen=True):
    """Who authenticated. ``tenant`` limits an API key to one tenant; ``claims`` are a JWT's."""

    kind: Literal["anonymous", "api_key", "jwt"]
    name: str = ""
    scopes: frozenset[str] = frozenset()
    tenant: str | None = None
    claims: Mapping[str, object] = msgspec.field(default_factory=dict)


class Identity(msgspec.Struct, frozen=True):
    """Whose request it is. ``named`` is False where nobody named a tenant."""

    tenant: str
    session: str
    named: bool


def identity_policy(settings: GatewaySettings) -> IdentityPolicy:
    """The part of the settings that decides who a request belongs to."""
    return IdentityPolicy(
        source=settings.tenant_source,
        tenant_header=settings.tenant_header,
        session_header=settings.session_header,
        multi_tenant=settings.multi_tenant,
        mixed=settings.mixed,
    )


def check_headers(headers: Headers, policy: IdentityPolicy) -> dict[str, str]:
    """The identity headers by lower-case name, after refusing what no client may send.

    Raises GatewayError 400 for an unknown or repeated X-KV-* header, for one that is not
    1 to 128 printable ASCII characters, and for headers by which the engine would be steered.
    """
    tenant_header = policy.tenant_header if policy.source.kind == "header" else None
    known, passed = _tables(policy.session_header, tenant_header)
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        if raw_name in passed:
            continue
        name = raw_name.decode("latin-1").lower()
        label = known.get(name)
        if label is not None:
            if name in found:
                raise GatewayError(
                    f"the header {label} was sent more than once", param=label, code="bad_identity"
                )
            found[name] = _check_id(raw_value.decode("latin-1"), f"the header {label}", label)
            continue
        plain = name.replace("_", "-")
        if plain.startswith("x-kv-") or plain in known:
            raise GatewayError(
                f"unknown header {_printable(name)}; known here are "
                + " and ".join(sorted(known.values())),
                param=_printable(name),
                code="bad_identity",
            )
        if plain in ENGINE_HEADERS:
            raise GatewayError(
                f"the header {_printable(name)} may not be set by a client",
                param=_printable(name),
                code="governed_header",
            )
    return found


def resolve_identity(
    identity_headers: Mapping[str, str],
    body: Mapping[str, object] | None,
    principal: Principal,
    policy: IdentityPolicy,
    *,
    seen_tenant: bool,
    user_in_metadata: bool = False,
) -> Identity:
    """Whose request this is. ``identity_headers`` come from :func:`check_headers`.

    ``seen_tenant`` says that this deployment has had a request with a tenant before;
    ``user_in_metadata`` that this API names its end user in ``metadata.user_id`` (Messages).
    Raises GatewayError: 400 for a missing or malformed id, 403 where the credential and the
    tenant do not agree.
    """
    session = identity_headers.get(policy.session_header.lower(), DEFAULT_SESSION)
    tenant = _named_tenant(identity_headers, body or {}, principal, policy, user_in_metadata)
    if principal.tenant is not None:
        if tenant is not None and tenant != principal.tenant:
            raise GatewayError(
                "this API key belongs to another tenant", status=403, code="wrong_tenant"
            )
        tenant = principal.tenant
    if tenant is not None:
        if tenant == DEFAULT_TENANT:
            raise GatewayError(
                f"the tenant id {DEFAULT_TENANT!r} is reserved for requests without a tenant",
                code="bad_identity",
            )
        return Identity(tenant, session, named=True)
    if policy.source.kind == "jwt" and not policy.mixed:
        raise GatewayError(
            f"no tenant: the tenant of this deployment is the claim {policy.source.name!r} of a"
            " JSON web token, and the request carries none",
            status=403,
            code="missing_tenant",
        )
    if (policy.multi_tenant or seen_tenant) and not policy.mixed:
        why = (
            "this deployment is multi-tenant"
            if policy.multi_tenant
            else "this deployment has served requests with a tenant before"
        )
        raise GatewayError(
            f"no tenant: {_where(policy)} is missing and {why}",
            param=_where_param(policy),
            code="missing_tenant",
        )
    return Identity(DEFAULT_TENANT, session, named=False)


@lru_cache(maxsize=8)
def _tables(
    session_header: str, tenant_header: str | None
) -> tuple[dict[str, str], frozenset[bytes]]:
    """The identity headers by lower-case name, and the usual headers that are none of them."""
    known = {session_header.lower(): session_header}
    if tenant_header is not None:
        known[tenant_header.lower()] = tenant_header
    taken = {name.encode() for name in known}
    taken |= {name.replace("_", "-").encode() for name in known}
    return known, _USUAL_HEADERS - taken


def _named_tenant(
    identity_headers: Mapping[str, str],
    body: Mapping[str, object],
    principal: Principal,
    policy: IdentityPolicy,
    user_in_metadata: bool,
) -> str | None:
    source = policy.source
    if source.kind == "header":
        return identity_headers.get(policy.tenant_header.lower())
    if source.kind == "jwt":
        if principal.kind != "jwt":
            return None
        claim = principal.claims.get(source.name)
        if not isinstance(claim, str) or not _ID.fullmatch(claim):
            raise GatewayError(
                f"the token's claim {source.name!r} does not hold a tenant id (1 to"
                f" {MAX_ID_CHARS} printable ASCII characters)",
                status=403,
                code="bad_identity",
            )
        return claim
    field_name = "metadata.user_id" if user_in_metadata else source.name
    value = body.get(source.name)
    if user_in_metadata:
        metadata = body.get("metadata")
        value = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if value is None:
        return None
    if not isinstance(value, str):
        raise GatewayError(
            f"the body field {field_name} must be text", param=field_name, code="bad_identity"
        )
    return _check_id(value, f"the body field {field_name}", field_name)


def _check_id(value: str, what: str, param: str) -> str:
    if not _ID.fullmatch(value):
        raise GatewayError(
            f"{what} must be 1 to {MAX_ID_CHARS} printable ASCII characters without spaces",
            param=param,
            code="bad_identity",
        )
    return value


def _where(policy: IdentityPolicy) -> str:
    if policy.source.kind == "header":
        return f"the header {policy.tenant_header}"
    return f"the body field {policy.source.name}"


def _where_param(policy: IdentityPolicy) -> str:
    return policy.tenant_header if policy.source.kind == "header" else policy.source.name


def _printable(name: str) -> str:
    return "".join(c if "!" <= c <= "~" else "?" for c in name)[:64]


# Looked at only for speed: each may be sent by every client and steers nothing in the engine.
_USUAL_HEADERS = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"user-agent",
    }
)
_ID = re.compile(r"[\x21-\x7e]{1,128}")
