"""``[gateway]``: where it listens, whose requests it takes and how they become a tenant's."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from kvrun.config.values import ByteSize, Section, is_loopback, setting

JwtAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]

# Read by vLLM 0.32: session, scheduling priority and the choice of a data-parallel rank.
ENGINE_HEADERS = frozenset({"x-session-id", "x-vllm-priority", "x-data-parallel-rank"})


@dataclass(frozen=True, slots=True)
class TenantSource:
    """Where the tenant's id stands: a header, a claim of a JWT, or a field of the body."""

    kind: Literal["header", "jwt", "body"]
    name: str


def parse_tenant_source(text: str) -> TenantSource:
    """Read the setting ``tenant_from``. Raises ValueError that says what is allowed."""
    if text == "header":
        return TenantSource("header", "")
    if text.startswith("jwt:") and len(text) > 4:
        return TenantSource("jwt", text[4:])
    if text in ("body:safety_identifier", "body:user"):
        return TenantSource("body", text[5:])
    raise ValueError(
        f"tenant_from = {text!r} is unknown; allowed are header, jwt:<claim>,"
        " body:safety_identifier and body:user"
    )


class JwtSettings(Section):
    """How JSON web tokens are checked. Exactly one of ``jwks_url`` and ``jwks_file`` is needed."""

    issuer: Annotated[str, Field(min_length=1, description="Who issues the tokens (iss).")]
    audience: Annotated[str, Field(min_length=1, description="For whom they are issued (aud).")]
    jwks_url: str | None = setting(
        None, "Where the issuer's keys are (https, or http on loopback)."
    )
    jwks_file: Path | None = setting(None, "The issuer's keys as a file, instead of jwks_url.")
    algorithms: tuple[JwtAlgorithm, ...] = setting(
        ("RS256", "ES256", "EdDSA"), "Signature algorithms that are accepted."
    )
    jwks_max_age_s: float = setting(300, "How long fetched keys are kept (seconds).", gt=0)
    leeway_s: float = setting(30, "Clock difference that is tolerated (seconds).", ge=0, le=300)

    @model_validator(mode="after")
    def _one_key_source(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("set exactly one of jwks_url and jwks_file")
        if not self.algorithms:
            raise ValueError("algorithms must name at least one signature algorithm")
        if self.jwks_url is not None and not _is_safe_url(self.jwks_url):
            raise ValueError("jwks_url must be https, or http on a loopback address")
        return self


class GatewaySettings(Section):
    """Everything the gateway can be told. Times are seconds, sizes bytes."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "TCP port to listen on.", ge=0, le=65535)
    tls_cert: Path | None = setting(None, "PEM file with the TLS certificate chain.")
    tls_key: Path | None = setting(None, "PEM file with the TLS private key.")
    behind_proxy: bool = setting(
        False, "A proxy in front speaks TLS, so that another address than loopback may be bound."
    )

    engine_url: str | None = setting(
        None, "The engine: unix:/path or http://127.0.0.1:port; unset: the one kvrun starts."
    )
    engine_api_key_file: Path | None = setting(
        None, "File with the key that the engine asks for (vllm serve --api-key)."
    )
    instance_socket: Path | None = setting(
        None, "Unix socket of the instance daemon; unset: the one kvrun starts."
    )
    claim_key_file: Path | None = setting(
        None, "Ed25519 private key (PEM) that signs claims; unset: a new one each launch."
    )
    state_dir: Path | None = setting(
        None, "Folder for what the gateway must remember over a restart."
    )

    tenant_from: str = setting(
        "header", "header, jwt:<claim>, body:safety_identifier or body:user."
    )
    tenant_header: str = setting("X-KV-Tenant", "Header that names the tenant.")
    session_header: str = setting("X-KV-Session", "Header that names the session.")
    multi_tenant: bool = setting(False, "Refuse every request without a tenant.")
    mixed: bool = setting(
        False, "Requests without a tenant share the tenant 'default' beside named tenants."
    )

    require_auth: bool = setting(True, "Refuse requests without a valid API key or token.")
    api_keys_file: Path | None = setting(None, "JSON file with the API keys' hashes.")
    jwt: JwtSettings | None = setting(None, "How JSON web tokens are checked.")

    max_body_bytes: ByteSize = setting(
        4 << 20, "Largest request body in bytes.", ge=1024, le=1 << 30
    )
    max_sessions_cached: int = setting(
        10_000, "Sessions whose salt is kept at hand; more are asked for again.", ge=1
    )
    claim_lifetime_s: int = setting(
        300, "How long a claim holds, queueing in the engine included.", ge=10, le=3600
    )
    session_timeout_s: float = setting(
        2.0, "Longest wait for the daemon; past it the request goes on uncached.", gt=0
    )
    require_daemon: bool = setting(
        False,
        "Refuse requests (503) while the daemon cannot say whether they may be processed here; "
        "true where residency.repository is set and enforced.",
    )
    body_timeout_s: float = setting(60.0, "Longest wait for a request's body.", gt=0)
    connect_timeout_s: float = setting(5.0, "Longest wait for a connection to the engine.", gt=0)
    response_timeout_s: float = setting(
        600.0, "Longest silence of the engine within one request.", gt=0
    )

    elsewhere: dict[str, str] = setting(
        {},
        "Gateways of this deployment in other regions, by region: whom the residency policy does "
        "not allow here is passed on to the first where it does (https, or http on loopback).",
        max_length=32,
    )
    elsewhere_ca_file: Path | None = setting(
        None, "PEM file with the authorities of their certificates; unset: the system's."
    )

    @field_validator("elsewhere")
    @classmethod
    def _gateways_are_safe(cls, value: dict[str, str]) -> dict[str, str]:
        for region, url in value.items():
            if not re.fullmatch(r"[\x21-\x7e]{1,128}", region):
                raise ValueError("a region is 1 to 128 printable ASCII characters without spaces")
            if not _is_address(url):
                raise ValueError(
                    f"the gateway of {region} must be https://HOST or https://HOST:PORT, or http on"
                    " a loopback address"
                )
        return value

    @field_validator("tenant_header", "session_header")
    @classmethod
    def _header_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
            raise ValueError("a header name is 1 to 64 letters, digits and hyphens")
        if value.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {value} has another meaning in HTTP or in the engine")
        return value

    @field_validator("engine_url")
    @classmethod
    def _engine_is_local(cls, value: str | None) -> str | None:
        if value is None or re.fullmatch(r"unix:/[^\x00]+", value):
            return value
        match = re.fullmatch(r"http://(127\.0\.0\.1|localhost|\[::1\]):(\d{1,5})/?", value)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise ValueError(
                "the engine must be on a Unix socket (unix:/path) or on loopback"
                " (http://127.0.0.1:port)"
            )
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        source = parse_tenant_source(self.tenant_from)
        if self.tenant_header.lower() == self.session_header.lower():
            raise ValueError("tenant_header and session_header must differ")
        if source.kind == "jwt" and self.jwt is None:
            raise ValueError(f"tenant_from = {self.tenant_from!r} needs the section gateway.jwt")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both or neither")
        if not self.is_loopback and self.tls_cert is None and not self.behind_proxy:
            raise ValueError(
                f"host = {self.host!r} is reachable from other machines: set tls_cert and tls_key,"
                " or behind_proxy = true where a proxy in front speaks TLS; or bind 127.0.0.1"
            )
        if not self.is_loopback and not self.require_auth and not self.behind_proxy:
            raise ValueError(
                f"require_auth = false would let anyone who reaches {self.host} in: bind 127.0.0.1,"
                " or set behind_proxy = true where a proxy in front checks who is asking"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host)

    @property
    def tenant_source(self) -> TenantSource:
        """``tenant_from``, read."""
        return parse_tenant_source(self.tenant_from)


def _is_safe_url(url: str) -> bool:
    return url.startswith("https://") or bool(
        re.match(r"http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?/", url)
    )


def _is_address(url: str) -> bool:
    """Whether this is scheme, host and port of a place that may be sent prompts."""
    match = re.fullmatch(
        r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\])(?::(\d{1,5}))?", url
    )
    if match is None or (match[3] and not 0 < int(match[3]) < 65536):
        return False
    return match[1] == "https" or is_loopback(match[2])


_RESERVED_HEADERS = ENGINE_HEADERS | frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
        "x-kv-request-id",
        "x-request-id",
    }
)
