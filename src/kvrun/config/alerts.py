"""``[alerts]``: who else is told of alerts."""

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from kvrun.config.values import Section, is_loopback, setting

_MAX_URL_CHARS = 2000


class AlertsSection(Section):
    """The webhook that alerts are sent to."""

    webhook_url: str | None = setting(
        None, "Where alerts are sent by HTTP POST: https, or http on a loopback address."
    )
    webhook_format: Literal["json", "slack"] = setting(
        "json", '"json": the whole alert and a text; "slack": the text alone, escaped for Slack.'
    )
    webhook_secret_file: Path | None = setting(
        None,
        "File (0600) with the secret, of 16 bytes or more, that signs each message with "
        "HMAC-SHA256.",
    )
    webhook_ca_file: Path | None = setting(
        None, "PEM file with the authorities of the receiver's certificate; unset: the system's."
    )
    webhook_timeout_s: float = setting(
        10.0, "Longest wait for the answer; past it the message is sent again.", gt=0, le=60
    )

    @field_validator("webhook_url")
    @classmethod
    def _url_is_safe(cls, value: str | None) -> str | None:
        if value is None:
            return None
        # The address may hold a secret, so no message quotes it.
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018  reading it checks it
        except ValueError:
            raise ValueError("is not an address") from None
        if len(value) > _MAX_URL_CHARS or not re.fullmatch(r"[\x21-\x7e]+", value):
            raise ValueError(f"must be at most {_MAX_URL_CHARS} ASCII characters without spaces")
        if not parts.hostname or parts.scheme not in ("https", "http"):
            raise ValueError("must start with https://HOST")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("must be https, or http on a loopback address")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise ValueError("must not contain a user, a password or a fragment (#)")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.webhook_url is None and self.webhook_secret_file is not None:
            raise ValueError("webhook_secret_file needs webhook_url")
        return self

    @property
    def receiver(self) -> str:
        """The receiver's name for logs; the rest of the address may be a secret."""
        return urlsplit(self.webhook_url or "").netloc
