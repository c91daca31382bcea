"""``[residency]``: which policy decides where context may live, and where this deployment is."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from kvrun.config.addresses import check_git_remote
from kvrun.config.values import Section, setting

DAY_S = 86_400
_REGION = r"^[\x21-\x7e]*$"


class ResidencySection(Section):
    """The policy's repository, and the regions of what this deployment uses."""

    repository: str | None = setting(
        None,
        "Git repository with the policies: https://, ssh://, host:path or an absolute folder; "
        "unset: the policy builtin-1, which allows every tier where the instance is.",
        max_length=2000,
    )
    ref: str = Field(
        default="main",
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        description="Branch or tag that is followed.",
    )
    path: str = Field(
        default="policies",
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        description="Folder of the repository whose .yaml files are the policies.",
    )
    mode: Literal["enforce", "warn", "off"] = setting(
        "enforce",
        '"enforce": what the policy does not allow is not done; "warn": it is done and put on '
        'record; "off": the policy is not asked.',
    )
    require_signed: bool = setting(
        False, "Take only commits that are signed by a key of allowed_signers."
    )
    allowed_signers: Path | None = setting(
        None, "File with those SSH keys, as ssh-keygen and git read it (allowed_signers)."
    )
    allow_rewind: bool = setting(
        False, "Follow a branch also where it was rewritten (a forced push)."
    )
    interval_s: int = setting(60, "Seconds between two looks at the repository.", ge=5, le=DAY_S)
    max_age_s: int = setting(
        7 * DAY_S,
        "A revision that was not confirmed by the repository for so long (seconds) allows GPU "
        "memory only.",
        ge=60,
        le=365 * DAY_S,
    )
    timeout_s: float = setting(
        30.0, "Longest wait for the repository; past it the revision stays.", gt=0, le=600
    )
    ssh_key_file: Path | None = setting(
        None, "SSH private key for the repository; unset: what ssh finds by itself."
    )
    token_file: Path | None = setting(None, "File with an access token for an https repository.")
    ca_file: Path | None = setting(
        None, "PEM file with the authorities of the repository's certificate; unset: the system's."
    )
    webhook_secret_file: Path | None = setting(
        None,
        "File (0600) with the secret, of 16 bytes or more, by which the repository's host "
        "announces pushes at the control plane (/api/v1/policy-pushes).",
    )
    region: str = Field(
        default="",
        max_length=128,
        pattern=_REGION,
        description="Region of this instance, as policies name it; empty: not said.",
    )
    storage_region: str = Field(
        default="",
        max_length=128,
        pattern=_REGION,
        description="Region of the Storage; empty: the instance's.",
    )
    storage_class: str = Field(
        default="",
        max_length=128,
        pattern=_REGION,
        description="Storage class of the object tier; empty: not said.",
    )

    instance_metadata: Literal["off", "aws", "gcp", "azure"] = setting(
        "off",
        "Whose metadata service is asked in which region this instance is; where that is another "
        "than region, decisions rest on no region at all.",
    )
    bucket_location: bool = setting(
        False,
        "Ask the object store of storage.url (S3: GetBucketLocation) in which region its bucket "
        "is; where that is another than storage_region, it counts as in none.",
    )

    @field_validator("repository")
    @classmethod
    def _repository_is_known(cls, value: str | None) -> str | None:
        return value if value is None else check_git_remote(value)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.require_signed and self.allowed_signers is None:
            raise ValueError("require_signed needs allowed_signers")
        if self.token_file is not None and not (self.repository or "").startswith("https:"):
            raise ValueError("token_file needs a repository that starts with https://")
        return self
