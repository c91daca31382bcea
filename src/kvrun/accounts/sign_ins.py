"""Signed-in browsers: opened, recognised, ended."""

from sqlalchemy import delete

from kvrun.accounts.actor import Actor, ActorKind
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.part import NOTE_USE_EVERY_S, Change, Part
from kvrun.accounts.records import SignIn
from kvrun.accounts.roles import roles_of
from kvrun.accounts.tables import SignInRow, UserRow
from kvrun.accounts.tokens import MAX_TOKEN_CHARS, csrf_of, hash_token, make_token


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
        it.
        Raises UnauthenticatedError when nobody is, or no more.
        """
        if not 0 < len(token) <= MAX_TOKEN_CHARS:
            raise _nobody()
        digest, now = hash_token(token), int(self._now())
        with self._database.reading() as session:
            row = session.get(SignInRow, digest)
            if row is None or not self._holds(row, now):
                raise _nobody()
            user = session.get_one(UserRow, row.user_id)
            actor = Actor(
                id=user.id,
                name=user.name,
                kind=ActorKind.LOCAL_OWNER if user.is_local_owner else ActorKind.USER,
                roles=roles_of(session, user),
                person=user.id,
            )
            seen_at = row.seen_at
        if note_use and now - seen_at >= NOTE_USE_EVERY_S:
            with self._database.transaction() as session:
                found = session.get(SignInRow, digest)
                if found is not None and self._holds(found, now):
                    found.seen_at = now
        return actor

    def close_sign_in(self, token: str) -> None:
        """Sign out. An unknown token changes nothing."""
        with self._changing() as change:
            row = change.session.get(SignInRow, hash_token(token[: MAX_TOKEN_CHARS + 1]))
            if row is not None:
                change.session.delete(row)
                change.note(AccessEventKind.SIGNED_OUT, None, None, row.user_id)

    def close_all_sign_ins(self, actor: Actor) -> None:
        """Sign the actor out everywhere."""
        with self._changing() as change:
            change.session.execute(delete(SignInRow).where(SignInRow.user_id == actor.id))
            change.note(AccessEventKind.SIGNED_OUT, actor, None, actor.id, "everywhere")

    def csrf_token(self, token: str) -> str:
        """What a page has to send back in ``X-CSRF-Token`` with everything that changes."""
        return csrf_of(token)

    def _open(self, change: Change, user_id: str, method: str, previous: str | None) -> SignIn:
        user = change.session.get(UserRow, user_id)
        if user is None:
            raise _nobody()
        idle_since = change.now - self._limits.idle_s
        change.session.execute(
            delete(SignInRow).where(
                (SignInRow.expires_at <= change.now) | (SignInRow.seen_at <= idle_since)
            )
        )
        if previous is not None and len(previous) <= MAX_TOKEN_CHARS:
            change.session.execute(
                delete(SignInRow).where(SignInRow.token_sha256 == hash_token(previous))
            )
        token = make_token(self._random_bytes)
        row = SignInRow(
            token_sha256=hash_token(token),
            user_id=user.id,
            method=method,
            created_at=change.now,
            seen_at=change.now,
            expires_at=change.now + self._limits.absolute_s,
        )
        change.session.add(row)
        user.last_sign_in_at = change.now
        change.note(AccessEventKind.SIGNED_IN, None, None, user.id, method)
        return SignIn(token, csrf_of(token), user.id, row.expires_at)

    def _holds(self, row: SignInRow, now: int) -> bool:
        return now < row.expires_at and now - row.seen_at < self._limits.idle_s


def _nobody() -> UnauthenticatedError:
    return UnauthenticatedError("nobody is signed in", hint="Sign in again.")
