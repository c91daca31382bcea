"""Whether it is the Git host that says there is a push. Pure.

A Git host signs the body with a shared secret (GitHub, Gitea, Forgejo: HMAC-SHA256 in
``X-Hub-Signature-256``) or sends the secret itself (GitLab: ``X-Gitlab-Token``). Nothing of the
body is read: the word makes us look at the repository, as we do by ourselves.
"""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE_HEADER = "X-Hub-Signature-256"
TOKEN_HEADER = "X-Gitlab-Token"  # noqa: S105  a header's name


def is_from_host(secret: bytes, body: bytes, *, signature: str, token: str) -> bool:
    """Whether the sender knows the secret. A signature that is there counts alone."""
    if signature:
        expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode())
    return hmac.compare_digest(token.encode("utf-8", "replace"), secret)
