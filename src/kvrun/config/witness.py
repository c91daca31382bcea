"""``[witness]``: who else remembers the audit log's checkpoints."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from kvrun.config.addresses import check_git_remote, split_address
from kvrun.config.values import Section, is_loopback, setting


class WitnessSection(Section):
    """Other parties that see each checkpoint, so that a fork or a rollback of the log shows."""

    urls: tuple[str, ...] = setting(
        (), "Addresses of C2SP witnesses, such as another kvrun's `kvrun witness serve`."
    )
    keys_file: Path | None = setting(
        None, "File with the verifier keys of those witnesses, one a line."
    )
    git_repository: Path | None = setting(
        None,
        "Git repository (bare or with a work tree) that keeps each checkpoint; unset: one in "
        "data_dir where git_remote is set.",
    )
    git_remote: str | None = setting(
        None, "Where that repository is pushed to: https://, ssh://, host:path or a folder."
    )
    git_branch: str = setting("kvrun-checkpoints", "Branch that the checkpoints are committed to.")
    git_ssh_key_file: Path | None = setting(
        None, "SSH private key for git_remote; unset: what ssh finds by itself."
    )
    git_token_file: Path | None = setting(
        None, "File with an access token for an https git_remote."
    )
    timestamp_url: str | None = setting(
        None, "Address of an RFC 3161 timestamp authority, which gets a hash only."
    )
    timestamp_ca_file: Path | None = setting(
        None, "PEM file with that authority's root certificate."
    )
    timestamp_every_s: int = setting(
        3600, "Seconds between two timestamps of one log.", ge=0, le=30 * 86_400
    )
    timeout_s: float = setting(
        20.0, "Longest wait for one witness; past it the checkpoint goes without it.", gt=0, le=600
    )
    tls_ca_file: Path | None = setting(
        None,
        "PEM file with the authorities of the witnesses' TLS certificates; unset: the system's.",
    )

    @field_validator("urls")
    @classmethod
    def _urls_are_safe(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = split_address(url, ("https", "http"))
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                raise ValueError(f"{url} must be https, or http on a loopback address")
        return value

    @field_validator("timestamp_url")
    @classmethod
    def _timestamp_url_is_http(cls, value: str | None) -> str | None:
        # Without TLS as well: a hash goes out, and what comes back is signed.
        if value is not None:
            split_address(value, ("https", "http"))
        return value

    @field_validator("git_remote")
    @classmethod
    def _remote_is_known(cls, value: str | None) -> str | None:
        return value if value is None else check_git_remote(value)

    @field_validator("git_branch")
    @classmethod
    def _branch_is_plain(cls, value: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_/-]{0,99}", value) and "//" not in value:
            return value.rstrip("/")
        raise ValueError("a branch name here is 1 to 100 letters, digits, '_', '-' and '/'")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.urls) != (self.keys_file is not None):
            raise ValueError("urls and keys_file belong together: set both or neither")
        if (self.timestamp_url is None) != (self.timestamp_ca_file is None):
            raise ValueError(
                "timestamp_url and timestamp_ca_file belong together: set both or neither"
            )
        if self.git_token_file is not None and not (self.git_remote or "").startswith("https:"):
            raise ValueError("git_token_file needs a git_remote that starts with https://")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """What is set, for people; empty means that there is no witness."""
        found = [urlsplit(url).netloc for url in self.urls]
        if self.git_remote is not None or self.git_repository is not None:
            found.append(f"git {self.git_remote or self.git_repository}")
        if self.timestamp_url is not None:
            found.append(f"timestamps of {urlsplit(self.timestamp_url).netloc}")
        return tuple(found)
