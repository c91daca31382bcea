"""The local owner: whoever can read the owner link token on the machine itself.

It makes the first sign-in possible, and one when the identity provider fails. Every use raises an
alert, the first too: if it was not you, somebody else read the file.
"""

import hmac
import os
from pathlib import Path
from typing import NoReturn

from sqlalchemy import select

from kvrun.accounts.errors import AccountsError, ConflictError, UnauthenticatedError
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.records import SignIn
from kvrun.accounts.sign_ins import SignIns
from kvrun.accounts.tables import UsedOwnerLinkRow, UserRow
from kvrun.accounts.tokens import (
    MAX_TOKEN_CHARS,
    RandomBytes,
    hash_token,
    make_id,
    make_token,
)
from kvrun.durable import replace_private_file

METHOD = "owner_link"


class OwnerLinks(SignIns):
    """The part of Accounts about the local owner."""

    def claim_owner_link(self, token: str, *, previous: str | None = None) -> SignIn:
        """Sign in as the local owner with the token in the file; it works once.

        A copy of the file from a backup does not work again. ``previous`` (the browser's cookie)
        ends. Raises UnauthenticatedError, always with the same words.
        """
        path = self._owner_link
        kept = read_owner_link(path) if path is not None else None
        given = token.strip() if len(token) <= MAX_TOKEN_CHARS else ""
        if not kept or not hmac.compare_digest(
            hash_token(kept).encode(), hash_token(given).encode()
        ):
            self._refuse("wrong token")
        try:
            sign_in = self._claim(given, previous)
        except ConflictError:  # somebody else was faster with the same token
            sign_in = None
        if sign_in is None:
            self._refuse("used token")
        if path is not None:
            path.unlink(missing_ok=True)
        return sign_in

    def _claim(self, token: str, previous: str | None) -> SignIn | None:
        """Sign the local owner in, and remember the token. None when it was used before."""
        with self._changing() as change:
            digest = hash_token(token)
            if change.session.get(UsedOwnerLinkRow, digest) is not None:
                return None
            change.session.add(UsedOwnerLinkRow(token_sha256=digest, used_at=change.now))
            owner = change.session.scalar(select(UserRow).where(UserRow.is_local_owner))
            if owner is None:
                owner = UserRow(
                    id=make_id("user", self._random_bytes),
                    email="",
                    name="local owner",
                    is_local_owner=True,
                    created_at=change.now,
                )
                change.session.add(owner)
            change.session.flush()
            change.note(AccessEventKind.OWNER_LINK_USED, None, None, owner.id, alert=True)
            return self._open(change, owner.id, METHOD, previous)

    def _refuse(self, why: str) -> NoReturn:
        self._tell_failure(f"{METHOD}: {why}")
        raise UnauthenticatedError(
            "the owner link is not valid",
            hint="It works once. `kvrun control owner-link` on the machine makes a new one.",
        )


def read_owner_link(path: Path) -> str | None:
    """The token that waits to be used, if there is one. Raises AccountsError.

    A file that other users may read opens nothing.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise AccountsError(
                "the owner link token may be read by other users", hint=f"Run: chmod 600 {path}"
            )
        return path.read_text(encoding="ascii")[: MAX_TOKEN_CHARS + 1].strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        raise AccountsError("the owner link token cannot be read") from None


def write_owner_link(path: Path, random_bytes: RandomBytes = os.urandom) -> str:
    """A new owner link token in place of the one before; it is returned and kept (mode 0600).

    Raises AccountsError when it cannot be written.
    """
    token = make_token(random_bytes)
    try:
        replace_private_file(path, f"{token}\n".encode("ascii"))
    except OSError as error:
        raise AccountsError(f"{path} cannot be written: {error.strerror}") from None
    return token
