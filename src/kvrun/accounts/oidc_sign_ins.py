"""A sign-in's way through the identity provider and back, and who it turns out to be."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Role
from kvrun.accounts.errors import ForbiddenError, SignInError
from kvrun.accounts.members import sync_groups
from kvrun.accounts.oidc import OidcClient, OidcIdentity, roles_by_group
from kvrun.accounts.part import Change
from kvrun.accounts.records import SignIn
from kvrun.accounts.roles import roles_of
from kvrun.accounts.sign_ins import SignIns
from kvrun.accounts.tables import OidcFlowRow, UserRow
from kvrun.accounts.tokens import MAX_TOKEN_CHARS, hash_token, make_id, make_token

METHOD = "oidc"
FLOW_LASTS_S = 600
MAX_FLOWS = 10_000
"""Sign-ins on their way; anybody can begin one, so the oldest give way."""


@dataclass(frozen=True, slots=True)
class OidcStart:
    """Where to send the browser, and the cookie that binds the sign-in to it (SameSite=Lax)."""

    url: str
    browser_token: str


class OidcSignIns(SignIns):
    """The part of Accounts about the identity provider."""

    def begin_oidc(self, client: OidcClient) -> OidcStart:
        """Begin a sign-in. Raises SignInError when the provider cannot be asked."""
        browser, state, nonce, verifier = (make_token(self._random_bytes) for _ in range(4))
        url = client.authorization_url(state=state, nonce=nonce, verifier=verifier)
        with self._changing() as change:
            _make_room(change.session, change.now)
            change.session.add(
                OidcFlowRow(
                    browser_sha256=hash_token(browser),
                    state_sha256=hash_token(state),
                    nonce=nonce,
                    verifier=verifier,
                    created_at=change.now,
                )
            )
        return OidcStart(url, browser)

    def finish_oidc(
        self,
        client: OidcClient,
        browser_token: str,
        *,
        state: str,
        code: str,
        issuer: str | None = None,
        roles: Mapping[str, str],
        first_workspace: str,
        previous: str | None = None,
    ) -> SignIn:
        """Finish it with what the browser brought back; each begun sign-in finishes once.

        ``issuer`` is the parameter ``iss``, ``roles`` the setting ``control.oidc_roles``,
        ``previous`` the browser's cookie, whose sign-in ends. Raises SignInError, and
        ForbiddenError for a person to whom nobody gave a role.
        """
        try:
            flow = self._taken_flow(browser_token, state)
            if not re.fullmatch(r"[\x20-\x7e]{1,4096}", code):
                raise SignInError("the identity provider's answer has no code")
            identity = client.finish(code, nonce=flow[0], verifier=flow[1], issuer=issuer)
            return self._sign_in(
                identity, roles_by_group(identity.groups, roles, first_workspace), previous
            )
        except (SignInError, ForbiddenError) as error:
            self._tell_failure(f"{METHOD}: {error.message}")
            raise

    def _taken_flow(self, browser_token: str, state: str) -> tuple[str, str]:
        """Nonce and verifier of the sign-in that this browser began; it is gone then."""
        if max(len(browser_token), len(state)) > MAX_TOKEN_CHARS:
            raise _no_flow()
        with self._changing() as change:
            row = change.session.scalar(
                select(OidcFlowRow)
                .where(OidcFlowRow.browser_sha256 == hash_token(browser_token))
                .with_for_update()
            )
            if row is not None:
                change.session.delete(row)
        if (
            row is None
            or change.now - row.created_at >= FLOW_LASTS_S
            or not hmac.compare_digest(row.state_sha256, hash_token(state))
        ):
            raise _no_flow()
        return row.nonce, row.verifier

    def _sign_in(
        self, identity: OidcIdentity, roles: Mapping[str, Role], previous: str | None
    ) -> SignIn:
        with self._changing() as change:
            user = self._user(change, identity, allowed=bool(roles))
            if user is not None:
                sync_groups(change, user, roles)
                change.session.flush()
                if roles_of(change.session, user):
                    return self._open(change, user.id, METHOD, previous)
        raise ForbiddenError(
            "nobody has given you a role here",
            hint="Ask an owner or an admin of a workspace to add you as a member.",
        )

    def _user(self, change: Change, identity: OidcIdentity, *, allowed: bool) -> UserRow | None:
        """Whose sign-in it is. Somebody unknown comes in by invitation or through a group.

        An invitation is for an address that the provider has verified.
        """
        session = change.session
        user = session.scalar(
            select(UserRow).where(
                UserRow.issuer == identity.issuer, UserRow.subject == identity.subject
            )
        )
        email = identity.email.lower()[:254] if identity.email else None
        if user is None and email is not None:
            user = session.scalar(
                select(UserRow)
                .where(
                    UserRow.email == email,
                    UserRow.subject.is_(None),
                    UserRow.is_local_owner.is_(False),
                )
                .limit(1)
                .with_for_update()
            )
        if user is None and allowed:
            user = UserRow(
                id=make_id("user", self._random_bytes),
                email=email or "",
                name=identity.name,
                is_local_owner=False,
                created_at=change.now,
            )
            session.add(user)
        if user is not None:
            user.issuer, user.subject, user.name = identity.issuer, identity.subject, identity.name
            user.email = email or user.email
            session.flush()
        return user


def _make_room(session: Session, now: int) -> None:
    """Forget sign-ins that never came back, and the oldest ones where there are too many."""
    session.execute(delete(OidcFlowRow).where(OidcFlowRow.created_at <= now - FLOW_LASTS_S))
    count = session.scalar(select(func.count()).select_from(OidcFlowRow)) or 0
    if count >= MAX_FLOWS:
        oldest = (
            select(OidcFlowRow.browser_sha256)
            .order_by(OidcFlowRow.created_at)
            .limit(count - MAX_FLOWS + 1)
        )
        session.execute(delete(OidcFlowRow).where(OidcFlowRow.browser_sha256.in_(oldest)))


def _no_flow() -> SignInError:
    return SignInError(
        "this sign-in was not begun in this browser, is too old or was finished before",
        hint="Begin again.",
    )
