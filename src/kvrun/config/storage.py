"""``[storage]``: where the workspace's Storage is."""

from typing import Literal, Self

from pydantic import model_validator

from kvrun.config.values import Section, setting

SCHEMES = ("s3://", "gs://", "az://", "file:///")


class StorageSection(Section):
    """Where collected logs and certificates go: a folder unless an object store is named."""

    url: str | None = setting(
        None,
        "Object store for collected logs and certificates: s3://BUCKET/PREFIX, gs://, az:// or "
        "file:///FOLDER; unset: the folder storage in data_dir.",
    )
    options: dict[str, str] = setting(
        {},
        "The object store's own options, such as endpoint, region, access_key_id; credentials are "
        "better left to the environment (AWS_ACCESS_KEY_ID, ...).",
    )

    object_lock: Literal["governance", "compliance", "off"] = setting(
        "governance",
        "How collected logs in S3 are held for audit.retention_days where the bucket offers Object "
        'Lock and has no default retention of its own; needs kvrun[aws]. "compliance": nobody can '
        "shorten it, and where they cannot be held so nothing is collected; only with s3://.",
    )

    @model_validator(mode="after")
    def _known_scheme(self) -> Self:
        if self.url is not None and not self.url.startswith(SCHEMES):
            raise ValueError(f"storage.url = {self.url!r} must start with {', '.join(SCHEMES)}")
        return self

    @model_validator(mode="after")
    def _holding_is_possible(self) -> Self:
        if self.object_lock == "compliance" and not (self.url or "").startswith("s3://"):
            raise ValueError(
                'storage.object_lock = "compliance" needs a storage.url of s3://BUCKET/PREFIX: '
                f'{self.url or "a folder"} holds nothing; "governance" and "off" are allowed'
            )
        return self
