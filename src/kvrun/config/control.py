"""``[control]``: the control plane; where it listens, what it keeps and how people sign in."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

from pydantic import field_validator, model_validator

from kvrun.config.values import ByteSize, Section, is_loopback, setting

ROLE_NAMES = ("owner", "admin", "developer", "privacy", "auditor")
"""What a group of the identity provider can be mapped to."""


class ControlSection(Section):
    """The control plane: API and console. Times are seconds, sizes bytes."""

    enabled: bool = setting(True, "`kvrun up` starts the control plane too.")
    home: Path | None = setting(
        None,
        "Folder of its database and of the deployments it makes; unset: control-plane in data_dir.",
    )
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8090, "TCP port to listen on.", ge=0, le=65535)
    tls_cert: Path | None = setting(None, "PEM file with the TLS certificate chain.")
    tls_key: Path | None = setting(None, "PEM file with the TLS private key.")
    behind_proxy: bool = setting(
        False, "A proxy in front speaks TLS, so that another address than loopback may be bound."
    )
    public_url: str | None = setting(
        None, "Address that people open, such as https://kvrun.example.com; unset: host and port."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "Further names by which requests may ask for it (the Host header)."
    )
    database_url: str | None = setting(
        None,
        "PostgreSQL database (postgresql+psycopg://USER@HOST/NAME); unset: SQLite in home. The "
        "password is better left to PGPASSFILE.",
    )
    session_idle_s: int = setting(
        3600, "A person who did nothing for so long has to sign in again.", ge=60, le=30 * 86_400
    )
    session_absolute_s: int = setting(
        12 * 3600, "After so long everybody has to sign in again.", ge=60, le=90 * 86_400
    )
    max_body_bytes: ByteSize = setting(
        2**20, "Largest request body in bytes; imports of tenants included.", ge=1024, le=2**28
    )
    finetune_memory_bytes: ByteSize | None = setting(
        None,
        "Most memory of this machine that a fine-tune asked for by API or console may take; unset: "
        "half of what there is; 0: none may be made.",
    )
    oidc_issuer: str | None = setting(
        None, "Issuer of the identity provider (OpenID Connect), an https address."
    )
    oidc_client_id: str | None = setting(None, "Client id at the identity provider.")
    oidc_client_secret_file: Path | None = setting(
        None,
        "File with the client secret, which nobody else may read; unset: a public client (PKCE is "
        "used always).",
    )
    oidc_scopes: tuple[str, ...] = setting(
        ("openid", "email", "profile"), "Scopes that are asked for."
    )
    oidc_groups_claim: str = setting(
        "groups", "Claim of the ID token that lists a person's groups."
    )
    oidc_roles: dict[str, str] = setting(
        {},
        'Role of each group: "ROLE" in the first workspace or "WORKSPACE:ROLE"; roles are owner, '
        "admin, developer, privacy and auditor.",
    )

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _url_is_safe(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = _split(value)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError(f"{value[:80]!r} must be https, or http on a loopback address")
        return value.rstrip("/")

    @field_validator("public_url")
    @classmethod
    def _url_has_no_path(cls, value: str | None) -> str | None:
        if value is not None and urlsplit(value).path:
            raise ValueError("public_url must have no path: the control plane serves from the root")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name):
                raise ValueError(f"{name[:80]!r} is not a host name (no port, no wildcard)")
        return tuple(name.lower() for name in value)

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("sqlite:///", "postgresql+psycopg://")):
            raise ValueError("database_url must start with postgresql+psycopg:// or sqlite:///")
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _roles_are_known(cls, value: dict[str, str]) -> dict[str, str]:
        for group, role in value.items():
            if role.rpartition(":")[2] not in ROLE_NAMES:
                raise ValueError(
                    f"the group {group[:80]!r} is mapped to {role[:80]!r}; allowed are"
                    f" {', '.join(ROLE_NAMES)}, with WORKSPACE: in front or not"
                )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both or neither")
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ValueError("oidc_issuer and oidc_client_id belong together: set both or neither")
        if not is_loopback(self.host) and self.tls_cert is None and not self.behind_proxy:
            raise ValueError(
                f"host = {self.host!r} is reachable from other machines: set tls_cert and tls_key,"
                " or behind_proxy = true where a proxy in front speaks TLS; or bind 127.0.0.1"
            )
        if self.session_idle_s > self.session_absolute_s:
            raise ValueError("session_idle_s must not be longer than session_absolute_s")
        return self

    @property
    def url(self) -> str:
        """The address that people open, without a slash at its end."""
        if self.public_url is not None:
            return self.public_url
        scheme = "https" if self.tls_cert else "http"
        bare = self.host.strip("[]")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104
        return f"{scheme}://{_bracketed(host)}:{self.port}"

    @property
    def secure(self) -> bool:
        """Whether people reach it over TLS, so that cookies may say Secure."""
        return self.url.startswith("https:")

    @property
    def host_names(self) -> frozenset[str]:
        """The names that a request may carry in Host, in lower case, without a port."""
        names = {"localhost", "127.0.0.1", "[::1]", *self.allowed_hosts}
        names.add(_bracketed(self.host.strip("[]").lower()))
        names.add(_bracketed(urlsplit(self.url).hostname or ""))
        return frozenset(names - {"0.0.0.0", "[::]", ""})  # noqa: S104


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  reading it checks it
    except ValueError:
        raise ValueError(f"{url[:80]!r} is not an address") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValueError("must start with https:// or http://")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must have no user, query or fragment")
    return parts
