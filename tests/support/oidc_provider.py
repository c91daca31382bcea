"""A small OpenID Connect provider: discovery, JWKS, authorize (code, PKCE S256 only), token.

It follows the specifications where :class:`Lies` does not tell it otherwise. Who is "signed in" at
it is set by the test; ``/authorize`` consents at once and sends the browser back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm


@dataclass
class Person:
    """Who is signed in at the provider."""

    subject: str = "alice-sub"
    email: str = "alice@example.com"
    email_verified: bool = True
    name: str = "Alice"
    groups: list[str] = field(default_factory=list)


@dataclass
class Lies:
    """How a hostile or broken provider differs from a good one."""

    claims: dict[str, Any] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    alg: str = "RS256"
    key_id: str | None = None
    foreign_key: bool = False
    ignore_pkce: bool = False
    reuse_codes: bool = False
    discovery: dict[str, Any] = field(default_factory=dict)
    redirect_token_to: str | None = None
    padding_bytes: int = 0


@dataclass(frozen=True)
class _Code:
    client_id: str
    redirect_uri: str
    challenge: str
    nonce: str | None
    person: Person


class OidcProvider:
    """One provider on a free port of loopback, with one client."""

    def __init__(
        self, *, client_id: str = "kvrun", client_secret: str | None = "s e/cret+1"
    ) -> None:
        self.client_id, self.client_secret = client_id, client_secret
        self.person = Person()
        self.lies = Lies()
        self.redirect_uris: set[str] = set()
        self.asked: list[str] = []
        """The paths that were asked for, in order."""
        self._codes: dict[str, _Code] = {}
        self.rotate_key()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._post(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def rotate_key(self) -> None:
        """Sign with a new key from now on."""
        self._key = rsa.generate_private_key(65537, 2048)
        self._key_id = secrets.token_hex(4)

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        self.asked.append(parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/.well-known/openid-configuration":
            _send(request, 200, self._metadata())
        elif parts.path == "/jwks":
            key = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
            _send(request, 200, {"keys": [{**key, "kid": self._key_id, "use": "sig"}]})
        elif parts.path == "/authorize":
            self._authorize(request, query)
        else:
            _send(request, 404, {"error": "not_found"})

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "padding": "x" * self.lies.padding_bytes,
            **self.lies.discovery,
        }

    def _authorize(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        target = query.get("redirect_uri", "")
        if query.get("client_id") != self.client_id or target not in self.redirect_uris:
            # Never a redirect to an address that was not registered (RFC 6749, 4.1.2.1).
            _send(request, 400, {"error": "invalid_request"})
            return
        answer = {"state": query["state"]} if "state" in query else {}
        answer["iss"] = self.issuer
        with_pkce = query.get("code_challenge_method") == "S256"
        scopes = query.get("scope", "").split()
        if query.get("response_type") != "code" or "openid" not in scopes or not with_pkce:
            answer["error"] = "invalid_request"
        else:
            answer["code"] = code = secrets.token_urlsafe(24)
            self._codes[code] = _Code(
                self.client_id, target, query["code_challenge"], query.get("nonce"), self.person
            )
        request.send_response(302)
        request.send_header("location", f"{target}?{urlencode(answer)}")
        request.send_header("content-length", "0")
        request.end_headers()

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        length = int(request.headers.get("content-length", "0"))
        body = request.rfile.read(length).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        if request.path != "/token":
            _send(request, 404, {"error": "not_found"})
        elif self.lies.redirect_token_to is not None:
            request.send_response(307)
            request.send_header("location", self.lies.redirect_token_to)
            request.send_header("content-length", "0")
            request.end_headers()
        elif not self._is_client(request, form):
            _send(request, 401, {"error": "invalid_client"})
        else:
            self._token(request, form)

    def _is_client(self, request: BaseHTTPRequestHandler, form: dict[str, str]) -> bool:
        """Whether it is the client: client_secret_basic, or a public client without a secret."""
        if self.client_secret is None:
            return form.get("client_id") == self.client_id
        kind, _, encoded = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        name, _, secret = base64.b64decode(encoded).decode().partition(":")
        given = unquote(name.replace("+", " ")), unquote(secret.replace("+", " "))
        return given == (self.client_id, self.client_secret)

    def _token(self, request: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        code = form.get("code", "")
        known = self._codes.get(code) if self.lies.reuse_codes else self._codes.pop(code, None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            known is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != known.redirect_uri
            or (challenge != known.challenge and not self.lies.ignore_pkce)
        ):
            _send(request, 400, {"error": "invalid_grant"})
            return
        answer = {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "expires_in": 300,
            "id_token": self._id_token(known),
        }
        _send(request, 200, answer)

    def _id_token(self, code: _Code) -> str:
        now = int(time.time())
        person = code.person
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "sub": person.subject,
            "aud": code.client_id,
            "iat": now,
            "exp": now + 300,
            "nonce": code.nonce,
            "email": person.email,
            "email_verified": person.email_verified,
            "name": person.name,
            "groups": person.groups,
            **self.lies.claims,
        }
        for name in self.lies.leave_out:
            del claims[name]
        headers = {"kid": self.lies.key_id or self._key_id}
        if self.lies.alg == "none":
            return jwt.encode(claims, None, algorithm="none", headers=headers)
        if self.lies.alg == "HS256":  # signed with the public key as if it were a shared secret
            return _hs256(claims, headers, self._key)
        key = rsa.generate_private_key(65537, 2048) if self.lies.foreign_key else self._key
        return jwt.encode(claims, key, algorithm=self.lies.alg, headers=headers)


def _hs256(claims: dict[str, Any], headers: dict[str, str], key: rsa.RSAPrivateKey) -> str:
    """By hand: PyJWT refuses to make such a token."""
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    parts = [{"alg": "HS256", "typ": "JWT", **headers}, claims]
    signed = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
    )
    tag = hmac.new(pem, signed.encode(), "sha256").digest()
    return f"{signed}.{base64.urlsafe_b64encode(tag).rstrip(b'=').decode()}"


def _send(request: BaseHTTPRequestHandler, status: int, document: object) -> None:
    content = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("content-type", "application/json")
    request.send_header("cache-control", "no-store")
    request.send_header("content-length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)
