"""``DELETE /kv/v1/users/{id}[/sessions/{sid}]``: an application erases one of its users.

The daemon erases and certifies; the gateway says who asked. Needs an API key with the scope
``erase``; a key that is limited to a tenant erases that tenant only. The query parameters
``reference`` and ``legal_basis`` go into the certificate, which is the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

from kvrun.gateway.admission import Admission, HeaderList
from kvrun.gateway.apikeys import SCOPE_ERASE
from kvrun.gateway.asgi import Scope, Send, send_whole
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.identity import MAX_ID_CHARS
from kvrun.gateway.link import InstanceLink

PREFIX = "/kv/v1/users/"
_PARAMETERS = {"reference": "", "legal_basis": ""}
_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class EraseTarget:
    """Whom to erase; an empty ``session`` means all of the tenant's."""

    tenant: str
    session: str
    reference: str
    legal_basis: str


async def erase(
    scope: Scope, send: Send, request_id: str, admission: Admission, link: InstanceLink | None
) -> None:
    """Answer an erasure request with its certificate.

    Raises GatewayError, or the daemon's refusal (KvrunError).
    """
    if scope["method"] != "DELETE":
        raise GatewayError(
            f"{PREFIX}... takes DELETE only", status=405, code="method_not_allowed", allow="DELETE"
        )
    headers: HeaderList = scope["headers"]
    caller = await admission.authenticate(headers, SCOPE_ERASE)
    principal = caller.principal
    if SCOPE_ERASE not in principal.scopes:
        raise GatewayError(
            f"erasing needs an API key with the scope {SCOPE_ERASE!r}",
            status=403,
            code="missing_scope",
        )
    target = parse_target(scope.get("raw_path") or scope["path"].encode(), scope["query_string"])
    if principal.tenant is not None and principal.tenant != target.tenant:
        raise GatewayError(
            "this API key belongs to another tenant", status=403, code="wrong_tenant"
        )
    if link is None:
        raise GatewayError(
            "this gateway has no instance daemon: nothing is cached here",
            status=503,
            code="no_daemon",
        )
    certificate = await link.erase_user(
        target.tenant,
        target.session,
        requester=f"API key {principal.name}",
        reference=target.reference,
        legal_basis=target.legal_basis,
    )
    await send_whole(send, 200, [(b"content-type", b"application/json")], certificate, request_id)


def parse_target(raw_path: bytes, query: bytes) -> EraseTarget:
    """The target in a request's path, percent-encoded as it came. Raises GatewayError 400, 404."""
    rest = raw_path.split(b"?")[0].removeprefix(PREFIX.encode()).split(b"/")
    ids = [_id(part) for part in _ids(rest)]
    texts = dict(_PARAMETERS)
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in texts:
            raise GatewayError(
                f"unknown parameter {name[:40]!r}; known are {', '.join(sorted(texts))}",
                param=name[:40],
                code="unknown_parameter",
            )
        if len(value) > _MAX_TEXT or not value.isprintable():
            raise GatewayError(
                f"{name} must be at most {_MAX_TEXT} printable characters",
                param=name,
                code="bad_parameter",
            )
        texts[name] = value
    session = ids[1] if len(ids) == 2 else ""
    return EraseTarget(ids[0], session, texts["reference"], texts["legal_basis"])


def _ids(parts: Sequence[bytes]) -> Sequence[bytes]:
    match parts:
        case [tenant] if tenant:
            return [tenant]
        case [tenant, b"sessions", session]:
            return [tenant, session]
    raise GatewayError("this path is not served here", status=404, code="unknown_path")


def _id(part: bytes) -> str:
    raw = unquote_to_bytes(part)
    if not 1 <= len(raw) <= MAX_ID_CHARS or not all(0x21 <= byte <= 0x7E for byte in raw):
        raise GatewayError(
            f"an id must be 1 to {MAX_ID_CHARS} printable ASCII characters without spaces",
            code="bad_identity",
        )
    return raw.decode("ascii")
