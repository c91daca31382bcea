"""JSON web tokens: signature against a JWKS, issuer, audience and expiry (RFC 7519, 7517)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import jwt
import msgspec

from kvrun.config.gateway import JwtSettings
from kvrun.gateway.errors import GatewayConfigError, GatewayError
from kvrun.gateway.identity import Principal

logger = logging.getLogger("kvrun.gateway")

JwksFetch = Callable[[], Awaitable[bytes]]
MIN_REFRESH_S = 30.0
RETRY_FIRST_FETCH_S = 1.0
MAX_TOKEN_CHARS = 16_384
JWKS_HINT = "gateway.jwt says where the issuer's key set is, in jwks_url or jwks_file."
UNUSABLE = (jwt.InvalidTokenError, ValueError, TypeError)
"""What jwt.decode raises for a token that somebody made up."""


class JwtVerifier:
    """Checks tokens against a key set that is fetched when needed and kept for a while.

    ``fetch`` returns the JWKS document. A token with a new key id makes it fetch again, at most
    every 30 s, so that made-up key ids cannot turn the gateway into a flood. An issuer that does
    not answer leaves the known keys in use.
    """

    def __init__(self, settings: JwtSettings, fetch: JwksFetch, now: Callable[[], float]) -> None:
        self._settings = settings
        self._fetch = fetch
        self._now = now
        self._keys: Mapping[str, jwt.PyJWK] | None = None
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    async def authenticate(self, token: str) -> Principal:
        """Who the token speaks for. Raises GatewayError 401, or 503 while no key is known."""
        if len(token) > MAX_TOKEN_CHARS:
            raise _invalid("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise _invalid("it is malformed") from None
        key_id = header.get("kid")
        if header.get("alg") not in self._settings.algorithms:
            raise _invalid("its signature algorithm is not allowed here")
        if not isinstance(key_id, str):
            raise _invalid("it does not name its key (kid)")
        key = await self._key(key_id)
        if key is None:
            raise _invalid("it was signed with an unknown key")
        return Principal("jwt", claims=self._decode(token, key))

    def _decode(self, token: str, key: jwt.PyJWK) -> Mapping[str, object]:
        settings = self._settings
        try:
            claims: dict[str, object] = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except UNUSABLE as error:
            raise _invalid(jwt_refusal(error)) from None
        return claims

    async def _key(self, key_id: str) -> jwt.PyJWK | None:
        if self._must_refresh(key_id):
            async with self._lock:
                if self._must_refresh(key_id):  # not if another request did it meanwhile
                    await self._refresh()
        if self._keys is None:
            raise GatewayError(
                "tokens cannot be checked right now: the issuer's keys are not available",
                status=503,
                code="issuer_unavailable",
                retry_after_s=5,
            )
        return self._keys.get(key_id)

    def _must_refresh(self, key_id: str) -> bool:
        now = self._now()
        if self._keys is None:
            return now - self._tried_at >= RETRY_FIRST_FETCH_S
        wanted = key_id not in self._keys or (
            now - self._fetched_at >= self._settings.jwks_max_age_s
        )
        return wanted and now - self._tried_at >= MIN_REFRESH_S

    async def _refresh(self) -> None:
        self._tried_at = self._now()
        try:
            self._keys = parse_jwks(await self._fetch())
        except (OSError, GatewayConfigError) as error:
            logger.warning(
                "the keys that sign tokens could not be fetched: %s. %s", error, JWKS_HINT
            )
            return
        self._fetched_at = self._now()


def jwt_refusal(error: Exception) -> str:
    """Why a token is not believed, of one of UNUSABLE: a sentence about "it", for its owner."""
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it comes from another issuer"
        case jwt.MissingRequiredClaimError():
            return f"its claim {error.claim} is missing"
    return "its signature or its claims are not valid"


def parse_jwks(document: bytes) -> dict[str, jwt.PyJWK]:
    """The signature keys of a JWKS document by key id. Raises GatewayConfigError."""
    try:
        entries = msgspec.json.decode(document)["keys"]
        keys = {}
        for entry in entries:
            if entry.get("use", "sig") == "sig" and isinstance(entry.get("kid"), str):
                if entry.get("kty") == "oct":
                    continue  # a shared secret in a public document protects nothing
                keys[entry["kid"]] = jwt.PyJWK(entry)
    except (msgspec.DecodeError, jwt.PyJWTError, KeyError, TypeError, AttributeError) as error:
        raise GatewayConfigError(
            f"the JWKS document is not usable: {error}", hint=JWKS_HINT
        ) from None
    return keys


def file_fetch(path: Path) -> JwksFetch:
    """A fetch that reads the key set from a local file each time."""

    async def fetch() -> bytes:
        return await asyncio.to_thread(path.read_bytes)

    return fetch


def _invalid(why: str) -> GatewayError:
    return GatewayError(f"the token is not valid: {why}", status=401, code="invalid_token")
