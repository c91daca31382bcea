"""Logins on command lines: let in by a person in a browser, for hours, and ended by either.

The browser's side gives a code, the command line shows it once together with the PKCE verifier
whose challenge came with the question (RFC 7636), and gets a token that only the API takes.
"""

import hmac
import re

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import (
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
)
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.oidc import challenge_of
from kvrun.accounts.part import Change
from kvrun.accounts.records import Login, SignIn
from kvrun.accounts.roles import roles_of
from kvrun.accounts.sign_ins import LOGIN_METHOD, SignIns, end_sign_ins
from kvrun.accounts.tables import LoginCodeRow, SignInRow, UserRow
from kvrun.accounts.tokens import MAX_TOKEN_CHARS, hash_token, make_code

LOGIN_PREFIX = "kvl_"
"""How a login's token begins, so that it is told from an API key."""
CODE_LASTS_S = 300
LONGEST_S = 8 * 3600
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_ID_CHARS = 16


class Logins(SignIns):
    """The part of Accounts about command lines."""

    def allow_login(self, token: str, challenge: str, lasts_s: int) -> str:
        """Let a command line act as whoever is signed in with the browser's ``token``.

        Returns the code for it: good once, for five minutes, and for whoever has the verifier of
        ``challenge``. The login lasts ``lasts_s``, and no longer than the browser's sign-in may;
        signing out in the browser ends it. A code that the person had before is none any more.
        Raises UnauthenticatedError, InvalidError.
        """
        if not _CHALLENGE.fullmatch(challenge):
            raise InvalidError("the challenge must be a PKCE challenge of the method S256")
        if not 60 <= lasts_s <= LONGEST_S:
            raise InvalidError(f"a login lasts 60 to {LONGEST_S} seconds")
        user_id = self.actor_of(token).id
        code = make_code(self._random_bytes)
        with self._changing() as change:
            # Locked, so that signing out waits for the code and takes it away.
            browser = change.session.get(SignInRow, hash_token(token), with_for_update=True)
            if browser is None:  # it was signed out a moment ago
                raise UnauthenticatedError("nobody is signed in", hint="Sign in again.")
            oldest = change.now - CODE_LASTS_S
            change.session.execute(
                delete(LoginCodeRow).where(
                    (LoginCodeRow.user_id == user_id) | (LoginCodeRow.created_at <= oldest)
                )
            )
            change.session.add(
                LoginCodeRow(
                    code_sha256=hash_token(code),
                    user_id=user_id,
                    challenge=challenge,
                    created_at=change.now,
                    until=min(change.now + lasts_s, browser.expires_at),
                    browser_sha256=browser.token_sha256,
                )
            )
        return code

    def finish_login(self, code: str, verifier: str) -> SignIn:
        """The login of a code, which is used up, whether the verifier is the right one or not.

        Raises UnauthenticatedError, always with the same words.
        """
        opened = None
        typed = re.sub(r"[\s-]", "", code).lower() if len(code) <= MAX_TOKEN_CHARS else ""
        with self._changing() as change:
            row = change.session.scalar(
                select(LoginCodeRow)
                .where(LoginCodeRow.code_sha256 == hash_token(typed))
                .with_for_update()
            )
            if row is not None:
                change.session.delete(row)
                if _is_for(row, verifier, change.now) and _has_role(change.session, row.user_id):
                    opened = self._log_in(change, row)
        if opened is None:
            self._tell_failure(f"{LOGIN_METHOD}: wrong code")
            raise UnauthenticatedError(
                "the code for the command line is not valid",
                hint="It works once, for five minutes, where it was asked for. Run: kvrun login",
            )
        return opened

    def actor_of_login(self, token: str) -> Actor:
        """Who is logged in with this token, with the roles of now. Raises UnauthenticatedError."""
        try:
            return self._actor_of(token, login=True)
        except UnauthenticatedError:
            raise UnauthenticatedError(
                "the login has ended or there never was one", hint="Run: kvrun login"
            ) from None

    def list_logins(self, actor: Actor) -> list[Login]:
        """The command lines on which a person is logged in, the latest first.

        Raises ForbiddenError for an API key.
        """
        _require_person(actor)
        now = int(self._now())
        with self._database.reading() as session:
            rows = session.scalars(_of(actor)).all()
            return [_login(row) for row in rows if self._holds(row, now)]

    def end_login(self, actor: Actor, login_id: str) -> None:
        """End a login of one's own. Raises NotFoundError, and ForbiddenError for an API key."""
        _require_person(actor)
        with self._changing() as change:
            rows = change.session.scalars(_of(actor)).all()
            found = [row.token_sha256 for row in rows if row.token_sha256[:_ID_CHARS] == login_id]
            if not found:
                raise NotFoundError("there is no such login")
            end_sign_ins(change, actor, SignInRow.token_sha256.in_(found))
            change.note(AccessEventKind.SIGNED_OUT, actor, None, actor.id, LOGIN_METHOD)

    def _log_in(self, change: Change, row: LoginCodeRow) -> SignIn:
        return self._open(
            change,
            row.user_id,
            LOGIN_METHOD,
            None,
            prefix=LOGIN_PREFIX,
            until=row.until,
            browser_sha256=row.browser_sha256,
        )


def _is_for(row: LoginCodeRow, verifier: str, now: int) -> bool:
    if now - row.created_at >= CODE_LASTS_S or not _VERIFIER.fullmatch(verifier):
        return False
    return hmac.compare_digest(challenge_of(verifier).encode(), row.challenge.encode())


def _has_role(session: Session, user_id: str) -> bool:
    return bool(roles_of(session, session.get_one(UserRow, user_id)))


def _require_person(actor: Actor) -> None:
    if actor.scopes is not None:
        raise ForbiddenError("only people log in on command lines, not API keys")


def _of(actor: Actor) -> Select[SignInRow]:
    return (
        select(SignInRow)
        .where(SignInRow.user_id == actor.id, SignInRow.method == LOGIN_METHOD)
        .order_by(SignInRow.created_at.desc(), SignInRow.token_sha256)
    )


def _login(row: SignInRow) -> Login:
    return Login(row.token_sha256[:_ID_CHARS], row.created_at, row.seen_at, row.expires_at)
