"""From a request's headers and body to the body the engine gets: proxy and middleware share it."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrun.claims.claim import encode_base64url
from kvrun.claims.rotating import RotatingSigner
from kvrun.gateway.apikeys import SCOPE_INFERENCE
from kvrun.gateway.auth import Authenticator
from kvrun.gateway.body import check_body, stamp_body
from kvrun.gateway.claiming import SessionClaims
from kvrun.gateway.draining import Drain
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.identity import (
    Identity,
    IdentityPolicy,
    Principal,
    check_headers,
    resolve_identity,
)
from kvrun.gateway.jsonbody import encode_object, parse_object
from kvrun.gateway.routes import Api, Route
from kvrun.gateway.salts import SessionDirectory
from kvrun.gateway.seen import SeenTenant
from kvrun.telemetry.traces import NOTHING, Trace

HeaderList = Sequence[tuple[bytes, bytes]]
SALT_BYTES = 32
_RETRY_AFTER_S = 2


class Caller(msgspec.Struct, frozen=True):
    """Who is asking, and the identity headers that came along."""

    principal: Principal
    identity_headers: Mapping[str, str]


class Admitted(msgspec.Struct, frozen=True):
    """A request that may go to the engine. ``governed`` is False where it goes uncached."""

    request_id: str
    tenant: str
    session: str
    body: bytes
    stream: bool
    governed: bool
    salt: str
    claim: str | None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What of our stamps no answer may show."""
        return (self.salt,) if self.claim is None else (self.salt, self.claim)


class _Stamp(msgspec.Struct, frozen=True):
    """What a request is given: an id, a salt, and a claim unless it goes on uncached."""

    request_id: str
    salt: str
    claim: str | None


class Admission:
    """Decides whether a request passes, and stamps it."""

    def __init__(
        self,
        *,
        policy: IdentityPolicy,
        authenticator: Authenticator,
        directory: SessionDirectory | None,
        signer: RotatingSigner | None,
        seen: SeenTenant,
        claim_lifetime_s: int,
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        drain: Drain,
        require_daemon: bool = False,
        announce: Callable[[str, str, int, str], None] | None = None,
    ) -> None:
        """``announce(salt, claim, uses, traceparent)`` is told of each claim before it is used."""
        self._announce = announce
        self._policy = policy
        self._drain = drain
        self._require_daemon = require_daemon
        self._authenticator = authenticator
        self._directory = directory
        self._claims: SessionClaims | None = None
        if directory is not None and signer is not None:
            self._claims = SessionClaims(
                directory.granter,
                signer,
                lifetime_s=claim_lifetime_s,
                now=now,
                random_bytes=random_bytes,
                new_request_id=self.new_request_id,
            )
        self._seen = seen
        self._random_bytes = random_bytes

    def new_request_id(self) -> str:
        """An id of our own; a client's X-Request-Id never reaches engine or log."""
        return f"kvr-{self._random_bytes(16).hex()}"

    async def authenticate(self, headers: HeaderList, scope: str = SCOPE_INFERENCE) -> Caller:
        """Who is asking; also refuses headers that no client may send. Raises GatewayError."""
        identity_headers = check_headers(headers, self._policy)
        principal = await self._authenticator.authenticate(headers, scope)
        return Caller(principal, identity_headers)

    async def admit(
        self,
        route: Route,
        caller: Caller,
        raw_body: bytes,
        request_id: str | None = None,
        trace: Trace = NOTHING,
    ) -> Admitted:
        """The stamped request. Raises GatewayError, or the daemon's refusal (KvrunError).

        Without ``request_id`` it is given one, with a claim that was signed ahead where one waits.
        """
        self._drain.check()
        body = parse_object(raw_body)
        checked = check_body(route, body)
        identity = resolve_identity(
            caller.identity_headers,
            body,
            caller.principal,
            self._policy,
            seen_tenant=self._seen.seen,
            user_in_metadata=route.api is Api.MESSAGES,
        )
        if identity.named:
            self._seen.mark()
        stamp = await self._stamp(identity, checked.uses, request_id, route, trace)
        salt, claim = stamp.salt, stamp.claim
        if claim is not None and self._announce is not None:
            self._announce(salt, claim, checked.uses, trace.traceparent)
        stamped = stamp_body(checked.fields, salt=salt, claim=claim, traceparent=trace.traceparent)
        return Admitted(
            request_id=stamp.request_id,
            tenant=identity.tenant,
            session=identity.session,
            body=encode_object(stamped),
            stream=checked.stream,
            governed=claim is not None or (not route.carries_claim and salt != ""),
            salt=salt,
            claim=claim,
        )

    async def _stamp(
        self, identity: Identity, uses: int, request_id: str | None, route: Route, trace: Trace
    ) -> _Stamp:
        opened = None
        if self._directory is not None and self._claims is not None:
            with trace.step("kvrun.session"):
                opened = await self._directory.grant(identity.tenant, identity.session)
        if opened is None or self._claims is None:
            return _Stamp(request_id or self.new_request_id(), self._uncached(), None)
        if not route.carries_claim:
            return _Stamp(request_id or self.new_request_id(), opened.salt, None)
        with trace.step("kvrun.claim"):
            if request_id is not None:
                claim = self._claims.sign(identity, opened, uses, request_id)
            else:
                claim = self._claims.next(identity, opened, uses)
        return _Stamp(claim.request_id, opened.salt, claim.token)

    def _uncached(self) -> str:
        """The salt of a request that goes on without the cache. Raises GatewayError where nobody
        can say whether it may be processed here."""
        if self._require_daemon:
            raise GatewayError(
                "the instance daemon cannot say now whether this tenant may be processed here",
                status=503,
                code="residency_unknown",
                retry_after_s=_RETRY_AFTER_S,
            )
        return self._random_salt()

    def _random_salt(self) -> str:
        return encode_base64url(self._random_bytes(SALT_BYTES)).decode()


def check_body_headers(headers: HeaderList, max_body_bytes: int) -> None:
    """Refuse what is not plain JSON of a bearable size. Raises GatewayError 400, 413 or 415."""
    content_type: bytes | None = None
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            if content_type is not None:
                raise GatewayError("the header Content-Type was sent more than once")
            content_type = value
        elif lower == b"content-encoding" and value.strip().lower() != b"identity":
            raise GatewayError(
                "compressed bodies are not accepted", status=415, code="unsupported_encoding"
            )
        elif lower == b"content-length" and value.isdigit() and int(value[:20]) > max_body_bytes:
            raise body_too_large(max_body_bytes)
    if (content_type or b"").split(b";")[0].strip().lower() != b"application/json":
        raise GatewayError(
            "the header Content-Type must be application/json",
            status=415,
            code="unsupported_media_type",
        )


def body_too_large(max_body_bytes: int) -> GatewayError:
    """The answer to a body above the limit: 413."""
    return GatewayError(
        f"the body is larger than {max_body_bytes} bytes", status=413, code="body_too_large"
    )
