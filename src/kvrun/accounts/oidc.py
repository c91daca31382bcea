"""Sign-in at an identity provider: OpenID Connect, authorization code with PKCE (RFC 7636).

The ID token is believed only when all of this holds: signed with an allowed asymmetric algorithm
by a key of the provider's JWKS, from the issuer, for this client, not expired, with the nonce of
this very sign-in.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx
import jwt
import msgspec

from kvrun.accounts.actor import Role
from kvrun.accounts.errors import SignInError
from kvrun.accounts.permissions import STRONGEST_FIRST
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.jwt import (
    MAX_TOKEN_CHARS,
    MIN_REFRESH_S,
    UNUSABLE,
    jwt_refusal,
    parse_jwks,
)

MAX_ANSWER_BYTES = 1 << 20
METADATA_MAX_AGE_S = 3600.0
LEEWAY_S = 30
MAX_GROUPS = 1000


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Which provider is asked, as which client. ``redirect_uri`` is this control plane's own."""

    issuer: str
    client_id: str
    redirect_uri: str
    client_secret: str | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    groups_claim: str = "groups"
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """Who the provider says has signed in. ``email`` is None unless the provider verified it."""

    issuer: str
    subject: str
    email: str | None
    name: str
    groups: frozenset[str]


class OidcClient:
    """Talks to one provider, whose metadata and keys are kept for a while. Safe between threads.

    ``now`` is a monotonic clock in seconds.
    """

    def __init__(
        self, settings: OidcSettings, http: httpx.Client, now: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._http = http
        self._now = now
        self._metadata: tuple[float, _Metadata] | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_at = float("-inf")

    def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where the browser is sent. ``verifier``: 43 to 128 characters that stay here.

        Raises SignInError when the provider cannot be asked.
        """
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._settings.redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = self._provider().authorization_endpoint
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    def finish(self, code: str, *, nonce: str, verifier: str, issuer: str | None) -> OidcIdentity:
        """Exchange the code that the browser brought back. ``issuer``: its parameter ``iss``.

        Raises SignInError.
        """
        provider = self._provider()
        if issuer is None and provider.authorization_response_iss_parameter_supported:
            raise SignInError("the identity provider's answer does not say who it is from")
        if issuer is not None and issuer != provider.issuer:
            raise SignInError("the answer comes from another identity provider")
        answer = self._exchange(provider, code, verifier)
        return self._identity(provider, answer.id_token, nonce)

    def _provider(self) -> "_Metadata":
        """The provider's metadata (OpenID Connect Discovery 1.0)."""
        if self._metadata is not None and self._now() - self._metadata[0] < METADATA_MAX_AGE_S:
            return self._metadata[1]
        configured = self._settings.issuer.rstrip("/")
        content = self._ask("GET", f"{configured}/.well-known/openid-configuration")
        found = _decoded(content, _Metadata, "metadata")
        if found.issuer.rstrip("/") != configured:
            raise SignInError("the identity provider names itself differently than configured")
        for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            _require_safe(url)
        methods = found.code_challenge_methods_supported
        if methods is not None and "S256" not in methods:
            raise SignInError("the identity provider does not know PKCE with S256")
        self._metadata = (self._now(), found)
        return found

    def _exchange(self, provider: "_Metadata", code: str, verifier: str) -> "_TokenAnswer":
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.redirect_uri,
            "client_id": self._settings.client_id,
            "code_verifier": verifier,
        }
        secret = self._settings.client_secret
        auth = None
        if secret is not None:
            auth = httpx.BasicAuth(_form_encoded(self._settings.client_id), _form_encoded(secret))
        return _decoded(
            self._ask("POST", provider.token_endpoint, form, auth), _TokenAnswer, "answer"
        )

    def _identity(self, provider: "_Metadata", token: str, nonce: str) -> OidcIdentity:
        claims = self._verified(provider, token)
        given = claims.get("nonce")
        if not isinstance(given, str) or not secrets.compare_digest(
            given.encode("utf-8", "replace"), nonce.encode()
        ):
            raise _not_believed("it belongs to another sign-in")
        audience = claims.get("aud")
        party = claims.get("azp")
        several = isinstance(audience, list) and len(audience) > 1
        if (several or party is not None) and party != self._settings.client_id:
            raise _not_believed("it was made for another client")
        subject = claims["sub"]
        if not isinstance(subject, str) or not re.fullmatch(r"[\x20-\x7e]{1,255}", subject):
            raise _not_believed("its subject is not 1 to 255 ASCII characters")
        return OidcIdentity(
            issuer=provider.issuer,
            subject=subject,
            email=_email(claims),
            name=_text(claims.get("name")) or _text(claims.get("preferred_username")) or subject,
            groups=_groups(claims.get(self._settings.groups_claim)),
        )

    def _verified(self, provider: "_Metadata", token: str) -> Mapping[str, object]:
        if len(token) > MAX_TOKEN_CHARS:
            raise _not_believed("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise _not_believed("it is malformed") from None
        if header.get("alg") not in self._settings.algorithms:
            raise _not_believed("its signature algorithm is not allowed")
        key = self._key(provider, header.get("kid"))
        try:
            claims: dict[str, object] = jwt.decode(
                token,
                key,
                algorithms=list(self._settings.algorithms),
                audience=self._settings.client_id,
                issuer=provider.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub", "nonce"]},
            )
        except jwt.InvalidAudienceError:
            raise _not_believed("it was made for another client") from None
        except UNUSABLE as error:
            raise _not_believed(jwt_refusal(error)) from None
        return claims

    def _key(self, provider: "_Metadata", key_id: object) -> jwt.PyJWK:
        """The provider's key of that id; a provider with one key need not name it."""
        if self._find_key(key_id) is None and self._now() - self._keys_at >= MIN_REFRESH_S:
            content = self._ask("GET", provider.jwks_uri)
            try:
                self._keys = parse_jwks(content)
            except GatewayConfigError:
                raise SignInError("the identity provider's keys cannot be read") from None
            self._keys_at = self._now()
        key = self._find_key(key_id)
        if key is None:
            raise _not_believed("it was signed with an unknown key")
        return key

    def _find_key(self, key_id: object) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id) if isinstance(key_id, str) else None

    def _ask(
        self,
        method: Literal["GET", "POST"],
        url: str,
        form: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
    ) -> bytes:
        """One request, without redirects; its answer, which must be 200 and not too long."""
        _require_safe(url)
        content = bytearray()
        try:
            with self._http.stream(
                method,
                url,
                data=form,
                auth=auth,
                headers={"accept": "application/json"},
                follow_redirects=False,
            ) as response:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER_BYTES:
                        raise SignInError("the identity provider's answer is too long")
        except (httpx.HTTPError, httpx.InvalidURL):
            raise SignInError("the identity provider does not answer", hint="Try again.") from None
        if response.status_code != 200:
            raise SignInError(
                f"the identity provider refused the sign-in (HTTP {response.status_code})",
                hint="Begin again.",
            )
        return bytes(content)


def challenge_of(verifier: str) -> str:
    """The PKCE code challenge S256 of a verifier (RFC 7636, section 4.2)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def roles_by_group(
    groups: frozenset[str], mapping: Mapping[str, str], first_workspace: str
) -> dict[str, Role]:
    """The roles, by workspace name, that somebody's groups give.

    ``mapping`` gives each group ``ROLE`` (in the first workspace) or ``WORKSPACE:ROLE``. Of several
    roles in a workspace the strongest counts. Raises ValueError for an unknown role.
    """
    found: dict[str, Role] = {}
    for group in groups & mapping.keys():
        workspace, _, name = mapping[group].rpartition(":")
        role, place = Role(name), workspace or first_workspace
        found[place] = min(role, found.get(place, role), key=STRONGEST_FIRST.index)
    return found


_T = TypeVar("_T")


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    code_challenge_methods_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool = False


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str


def _decoded(content: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        raise SignInError(f"the identity provider's {what} cannot be read") from None


def _require_safe(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host, parts = "", urlsplit("")
    local = host in ("127.0.0.1", "::1", "localhost")
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise SignInError("the identity provider must be asked over https")


def _form_encoded(text: str) -> str:
    """As client_secret_basic wants it (RFC 6749, section 2.3.1)."""
    return urlencode({"": text})[1:]


def _email(claims: Mapping[str, object]) -> str | None:
    return _text(claims.get("email")) if claims.get("email_verified") is True else None


def _groups(value: object) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > MAX_GROUPS:
        return frozenset()
    return frozenset(group for group in value if isinstance(group, str))


def _text(value: object) -> str | None:
    if isinstance(value, str) and value.isprintable() and 1 <= len(value.strip()) <= 200:
        return value.strip()
    return None


def _not_believed(why: str) -> SignInError:
    return SignInError(f"the identity provider's token is not believed: {why}", hint="Begin again.")
