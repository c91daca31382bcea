"""Where the control plane is, and the one-time link of its owner."""

import sys

from kvrun.config import KvrunConfig


def sign_in_line(config: KvrunConfig) -> str:
    """The control plane's address, with the owner's link while that waits to be used.

    Only a terminal shows the link itself: what is written to a log is read by others too.
    """
    url = config.control.url
    place = config.layout.owner_link
    try:
        token = place.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return url
    if not token:
        return url
    if not sys.stdout.isatty():
        return f"{url} (the one-time owner link token is in {place})"
    return f"{url}\n  sign in, once, with: {sign_in_link(config, token)}"


def sign_in_link(config: KvrunConfig, token: str) -> str:
    """The link that signs the local owner in."""
    return f"{config.control.url}/sign-in?token={token}"
