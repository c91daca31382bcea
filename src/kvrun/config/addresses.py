"""Addresses of other machines that a configuration may name: URLs and Git repositories."""

import re
from urllib.parse import SplitResult, urlsplit

from kvrun.config.values import is_loopback


def split_address(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """The parts of a URL with one of ``schemes``, without a password. Raises ValueError."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  reading it checks it
    except ValueError:
        raise ValueError(f"{url[:80]!r} is not an address") from None
    if parts.scheme not in schemes or not (parts.hostname or parts.scheme == "file"):
        raise ValueError(f"must start with {', '.join(f'{scheme}://' for scheme in schemes)}")
    if parts.password is not None:
        raise ValueError("must not contain a password; name a file that holds the secret")
    return parts


def check_git_remote(value: str) -> str:
    """``value`` where git reaches it over TLS, SSH or this machine only. Raises ValueError.

    Git knows transports that run programs (``ext::``); none of them passes.
    """
    if value.startswith("/"):
        return value
    if "://" in value:
        parts = split_address(value, ("https", "http", "ssh", "file"))
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("must be https, ssh or a folder")
        return value
    if re.fullmatch(r"\w[\w.-]*(@\w[\w.-]*)?:[^:\s-]\S*", value):
        return value
    raise ValueError("must be https://HOST/PATH, ssh://HOST/PATH, HOST:PATH or a folder (/...)")
