"""What engines, daemons and key services call the engine pages of a session."""

import hashlib

PAGE_OWNER_BYTES = 16


def page_owner(salt: str) -> bytes:
    """What a session's pages are called: 16 bytes that both ends derive from its salt.

    Unlike the salt it may be kept after the session's key is gone.
    """
    return hashlib.sha256(b"kvrun/page-owner/v1\0" + salt.encode()).digest()[:PAGE_OWNER_BYTES]
