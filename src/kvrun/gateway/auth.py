"""Who is asking: an API key or a JSON web token in the request's credentials."""

from collections.abc import Callable

from kvrun.gateway.apikeys import KEY_PREFIX, SCOPE_INFERENCE, ApiKeys
from kvrun.gateway.errors import GatewayError
from kvrun.gateway.identity import Headers, Principal
from kvrun.gateway.jwt import JwtVerifier

ANONYMOUS = Principal("anonymous", scopes=frozenset({SCOPE_INFERENCE}))


class Authenticator:
    """Checks the credentials of each request.

    Without ``required`` a request without credentials passes as anonymous; wrong ones never do.
    """

    def __init__(
        self,
        *,
        api_keys: ApiKeys | None,
        jwt: JwtVerifier | None,
        required: bool,
        now: Callable[[], float],
    ) -> None:
        self._api_keys = api_keys
        self._jwt = jwt
        self._required = required
        self._now = now

    async def authenticate(self, headers: Headers, scope: str) -> Principal:
        """Who is asking. Raises GatewayError 400, 401 or 403."""
        credential = read_credential(headers)
        if credential is None or not (self._required or self._api_keys or self._jwt):
            if self._required:
                raise GatewayError(
                    "no credentials: send an API key or a token as 'Authorization: Bearer ...'",
                    status=401,
                    code="missing_credentials",
                )
            return ANONYMOUS
        if self._api_keys is not None and (credential.startswith(KEY_PREFIX) or self._jwt is None):
            principal = self._api_keys.authenticate(credential, self._now())
            if scope not in principal.scopes:
                raise GatewayError(
                    f"this API key lacks the scope {scope!r}", status=403, code="missing_scope"
                )
            return principal
        if self._jwt is not None:
            principal = await self._jwt.authenticate(credential)
            if scope != SCOPE_INFERENCE:
                raise GatewayError(
                    f"a token does not give the scope {scope!r}; use an API key",
                    status=403,
                    code="missing_scope",
                )
            return principal
        raise GatewayError("the API key is not valid", status=401, code="invalid_api_key")


def read_credential(headers: Headers) -> str | None:
    """The one credential of a request: a bearer token, or X-API-Key as Anthropic's clients send.

    Raises GatewayError 400 for several, 401 for another authentication scheme.
    """
    found: list[str] = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise GatewayError(
                    "the header Authorization must be 'Bearer' and a key or token",
                    status=401,
                    code="missing_credentials",
                )
            found.append(token.strip())
        elif lower == b"x-api-key":
            found.append(value.decode("latin-1"))
    if len(found) > 1:
        raise GatewayError("credentials were sent more than once", code="bad_credentials")
    return found[0] if found else None
