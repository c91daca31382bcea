"""``[keys]``: the root of trust and when session keys are destroyed."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from kvrun.config.roots import (
    OpenBaoAddress,
    Pkcs11Address,
    RootAddress,
    parse_root,
)
from kvrun.config.values import Section, setting

DAY_S = 86_400


class KeysSection(Section):
    """The key hierarchy's root and limits."""

    mode: Literal["embedded", "service"] = setting(
        "embedded",
        "Who has the keys: the daemon itself, or `kvrun keys serve`, which several daemons of the "
        "deployment can share.",
    )
    socket: Path | None = setting(
        None, "The key service's socket, its token beside it; unset: run/keys.sock in data_dir."
    )
    metrics_port: int | None = setting(
        None,
        "TCP port on 127.0.0.1 for /healthz, /readyz and /metrics of the key service; unset: none.",
        ge=1,
        le=65535,
    )
    metrics_socket: Path | None = setting(None, "Unix socket (0600) for the same; unset: none.")
    root: str = setting(
        "file",
        '"file" (the folder NAME-root beside the data folder NAME), "file:FOLDER" (relative to '
        'data_dir), "memory" (every key is lost at a restart), "openbao:URL/MOUNT/KEY", '
        '"pkcs11:MODULE?token=LABEL&key=NAME" or "aws-kms:KEY_ARN".',
    )
    root_secret: str | None = setting(
        None,
        'Where the token of an OpenBao root or the PIN of a PKCS#11 root is: "file:PATH", "fd:N" '
        'or, for a token, "env:NAME"; never the secret itself.',
    )
    root_folder: Path | None = setting(
        None,
        "Folder of what a root in another system wraps; unset: root-openbao, root-pkcs11 or "
        "root-aws-kms in data_dir.",
    )
    root_ca_file: Path | None = setting(
        None, "PEM file with the certificates to trust at OpenBao; unset: the system's."
    )
    root_namespace: str | None = setting(None, "Namespace in OpenBao or Vault.", max_length=256)
    root_timeout_s: float = setting(
        5.0, "Longest wait for an answer of OpenBao or AWS (seconds).", gt=0, le=30
    )
    lease_s: int = setting(
        30,
        "Keys are used only while the root confirmed them so recently (seconds); it is asked three "
        "times as often.",
        ge=3,
        le=30,
    )
    idle_timeout_s: int = setting(
        7 * DAY_S, "A session's key unused for this long is destroyed (seconds).", ge=1
    )
    absolute_timeout_s: int = setting(
        30 * DAY_S, "A session's key older than this is destroyed (seconds).", ge=1
    )
    max_sessions_per_tenant: int = setting(
        1000, "Live sessions of one tenant; beyond it requests get 429.", ge=1, le=10_000_000
    )

    @property
    def root_address(self) -> RootAddress:
        """``root`` as data."""
        return parse_root(self.root)

    @property
    def root_secret_variable(self) -> str | None:
        """The environment variable that holds the root's token, where one does."""
        kind, _, name = (self.root_secret or "").partition(":")
        return name if kind == "env" else None

    @field_validator("root")
    @classmethod
    def _known_root(cls, value: str) -> str:
        parse_root(value)
        return value

    @model_validator(mode="after")
    def _settings_fit_the_root(self) -> Self:
        # Never shows what root_secret holds: it may be the secret itself, put there by mistake.
        address = self.root_address
        asks = isinstance(address, OpenBaoAddress | Pkcs11Address)
        if self.root_secret is None and asks:
            what = "token" if isinstance(address, OpenBaoAddress) else "PIN"
            raise ValueError(
                f'keys.root_secret must say where the {what} is: "file:PATH" or "fd:N"'
                + (' or "env:NAME"' if what == "token" else "")
            )
        if self.root_secret is not None:
            if not asks:
                raise ValueError(f"keys.root_secret means nothing for the {address.kind} root")
            kind = self.root_secret.partition(":")[0]
            allowed = ("file", "fd") if isinstance(address, Pkcs11Address) else _PLACES
            if kind not in allowed or not _PLACES[kind].fullmatch(self.root_secret):
                raise ValueError(
                    'keys.root_secret must be "file:PATH" or "fd:N" (or "env:NAME" for an OpenBao '
                    "token); the secret itself never stands in the configuration"
                )
        for name in ("root_ca_file", "root_namespace"):
            if getattr(self, name) is not None and not isinstance(address, OpenBaoAddress):
                raise ValueError(f"keys.{name} means nothing for the {address.kind} root")
        return self

    @model_validator(mode="after")
    def _idle_before_absolute(self) -> Self:
        if self.idle_timeout_s > self.absolute_timeout_s:
            raise ValueError(
                f"keys.idle_timeout_s = {self.idle_timeout_s} must not be larger than "
                f"keys.absolute_timeout_s = {self.absolute_timeout_s}"
            )
        return self


_PLACES = {
    "file": re.compile(r"file:.+"),
    "fd": re.compile(r"fd:[0-9]{1,6}"),
    "env": re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*"),
}
