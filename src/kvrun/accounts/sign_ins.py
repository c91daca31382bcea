"""Signed-in browsers, and command lines that a browser let in: opened, recognised, ended."""

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor, ActorKind
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.part import NOTE_USE_EVERY_S, Change, Part
from kvrun.accounts.records import SignIn
from kvrun.accounts.roles import roles_of
from kvrun.accounts.tables import ApiKeyRow, LoginCodeRow, SignInRow, UserRow
from kvrun.accounts.tokens import MAX_TOKEN_CHARS, csrf_of, hash_token, make_token

LOGIN_METHOD = "terminal"
"""The method of a command line's login; no other sign-in has it."""


class SignIns(Part):
    """The part of Accounts about sign-in sessions.

    A token is 256 random bits, made anew at every sign-in and stored as a hash, so that neither a
    planted cookie nor the database signs anybody in.
    """

    def open_sign_in(self, user_id: str, *, method: str, previous: str | None = None) -> SignIn:
        """Sign a person in who proved who they are. ``previous`` (the browser's cookie) ends.

        Raises UnauthenticatedError for an unknown user.
        """
        with self._changing() as change:
            return self._open(change, user_id, method, previous)

    def actor_of(self, token: str, *, note_use: bool = True) -> Actor:
        """Who is signed in with this token, with the roles of now.

        ``note_use`` off: a page that only looks whether the sign-in still holds does not prolong
        it. A command line's login is none of a browser's.
        Raises UnauthenticatedError when nobody is, or no more.
        """
        return self._actor_of(token, login=False, note_use=note_use)

    def _actor_of(self, token: str, *, login: bool, note_use: bool = True) -> Actor:
        if not 0 < len(token) <= MAX_TOKEN_CHARS:
            raise _nobody()
        digest, now = hash_token(token), int(self._now())
        with self._database.reading() as session:
            row = session.get(SignInRow, digest)
            if row is None or (row.method == LOGIN_METHOD) is not login:
                raise _nobody()
            if not self._holds(row, now):
                raise _nobody()
            user = session.get_one(UserRow, row.user_id)
            actor = Actor(
                id=user.id,
                name=user.name,
                kind=ActorKind.LOCAL_OWNER if user.is_local_owner else ActorKind.USER,
                roles=roles_of(session, user),
                person=user.id,
                login_expires_at=row.expires_at if login else None,
                login_sha256=digest if login else None,
            )
            seen_at = row.seen_at
        if note_use and now - seen_at >= NOTE_USE_EVERY_S:
            with self._database.transaction() as session:
                # One statement: whoever signs out at this moment leaves no row to change.
                session.execute(
                    update(SignInRow)
                    .where(
                        SignInRow.token_sha256 == digest,
                        SignInRow.expires_at > now,
                        SignInRow.seen_at > now - self._limits.idle_s,
                    )
                    .values(seen_at=now)
                )
        return actor

    def close_sign_in(self, token: str) -> None:
        """Sign out, and end the logins on command lines that this browser allowed, also those on
        their way. An unknown token changes nothing.
        """
        digest = hash_token(token[: MAX_TOKEN_CHARS + 1])
        with self._changing() as change:
            ended = end_sign_ins(change, None, SignInRow.token_sha256 == digest)
            # Also where the browser's own row is gone, for want of use: it may have allowed some.
            _end_allowed_by(change, digest)
            for user_id in ended:
                change.note(AccessEventKind.SIGNED_OUT, None, None, user_id)

    def close_all_sign_ins(self, actor: Actor) -> None:
        """Sign the actor out everywhere, on command lines too."""
        with self._changing() as change:
            # The browsers first: a code that one of them is just being given is there then.
            end_sign_ins(change, actor, SignInRow.user_id == actor.id)
            end_logins(change, actor, actor.id)
            change.note(AccessEventKind.SIGNED_OUT, actor, None, actor.id, "everywhere")

    def csrf_token(self, token: str) -> str:
        """What a page has to send back in ``X-CSRF-Token`` with everything that changes."""
        return csrf_of(token)

    def _open(
        self,
        change: Change,
        user_id: str,
        method: str,
        previous: str | None,
        *,
        prefix: str = "",
        until: int | None = None,
        browser_sha256: str | None = None,
    ) -> SignIn:
        """``until``: when it ends at the latest, where that is before everybody's sign-in does.

        ``browser_sha256``: of the browser that allows a command line's login.
        """
        user = change.session.get(UserRow, user_id)
        if user is None:
            raise _nobody()
        idle_since = change.now - self._limits.idle_s
        change.session.execute(
            delete(SignInRow).where(
                (SignInRow.expires_at <= change.now) | (SignInRow.seen_at <= idle_since)
            )
        )
        token = prefix + make_token(self._random_bytes)
        if previous is not None and len(previous) <= MAX_TOKEN_CHARS:
            _replace(change, hash_token(previous), hash_token(token), user.id)
        last = change.now + self._limits.absolute_s
        row = SignInRow(
            token_sha256=hash_token(token),
            user_id=user.id,
            method=method,
            created_at=change.now,
            seen_at=change.now,
            expires_at=last if until is None else min(until, last),
            browser_sha256=browser_sha256,
        )
        change.session.add(row)
        user.last_sign_in_at = change.now
        change.note(AccessEventKind.SIGNED_IN, None, None, user.id, method)
        return SignIn(token, csrf_of(token), user.id, row.expires_at)

    def _holds(self, row: SignInRow, now: int) -> bool:
        return now < row.expires_at and now - row.seen_at < self._limits.idle_s


def end_sign_ins(change: Change, actor: Actor | None, which: ColumnElement[bool]) -> list[str]:
    """End sign-ins, and revoke the API keys that were made with those that are logins.

    Returns whose they were: users' ids.
    """
    ended = change.session.execute(
        delete(SignInRow).where(which).returning(SignInRow.token_sha256, SignInRow.user_id)
    ).all()
    for key in change.session.scalars(
        select(ApiKeyRow).where(
            ApiKeyRow.login_sha256.in_([digest for digest, _ in ended]),
            ApiKeyRow.revoked_at.is_(None),
        )
    ):
        key.revoked_at = change.now
        change.note(AccessEventKind.API_KEY_REVOKED, actor, key.workspace_id, key.id)
    return [user_id for _, user_id in ended]


def end_logins(change: Change, actor: Actor | None, user_id: str) -> None:
    """End a person's logins on command lines, also those that are on their way."""
    change.session.execute(delete(LoginCodeRow).where(LoginCodeRow.user_id == user_id))
    mine = SignInRow.user_id == user_id
    end_sign_ins(change, actor, and_(mine, SignInRow.method == LOGIN_METHOD))


def lock_login(session: Session, actor: Actor) -> None:
    """Keep a command line's login from ending before the transaction does: whatever ends it finds
    what it made. Raises UnauthenticatedError where it has ended.
    """
    if actor.login_expires_at is None:
        return
    if session.get(SignInRow, actor.login_sha256, with_for_update=True) is None:
        raise _nobody()


def _end_allowed_by(change: Change, browser_sha256: str) -> None:
    allowed = LoginCodeRow.browser_sha256 == browser_sha256
    change.session.execute(delete(LoginCodeRow).where(allowed))
    end_sign_ins(change, None, SignInRow.browser_sha256 == browser_sha256)


def _replace(change: Change, old: str, new: str, user_id: str) -> None:
    """End the browser's earlier sign-in. The logins that it allowed are the new one's to end where
    the person is the same; another person's end.
    """
    end_sign_ins(change, None, SignInRow.token_sha256 == old)
    change.session.execute(
        update(SignInRow)
        .where(SignInRow.browser_sha256 == old, SignInRow.user_id == user_id)
        .values(browser_sha256=new)
    )
    _end_allowed_by(change, old)


def _nobody() -> UnauthenticatedError:
    return UnauthenticatedError("nobody is signed in", hint="Sign in again.")
