"""API keys: made, shown once, listed, replaced, revoked, and recognised."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.checks import check_deployment_id, check_name, is_id
from kvrun.accounts.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
)
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.gateway_keys import HeldKey, gateway_records
from kvrun.accounts.part import NOTE_USE_EVERY_S, Change, Part
from kvrun.accounts.permissions import Permission, allowed_scopes, may, require
from kvrun.accounts.records import KeyRecord
from kvrun.accounts.roles import (
    locked_workspace,
    require_may_give,
    role_of_holder,
    roles_of_holders,
)
from kvrun.accounts.sign_ins import lock_login
from kvrun.accounts.tables import ApiKeyRow, ServiceAccountRow, UserRow
from kvrun.accounts.tokens import MAX_TOKEN_CHARS, make_id
from kvrun.gateway.apikeys import KEY_PREFIX, ApiKeyRecord, hash_api_key, make_api_key

MAX_ACTIVE_OF_A_NAME = 2
"""A key and its successor, while programs change over."""
MAX_ACTIVE_IN_A_WORKSPACE = 1000
LONGEST_LIFE_S = 10 * 366 * 86_400


class Keys(Part):
    """The part of Accounts about API keys."""

    def create_key(
        self,
        actor: Actor,
        workspace_id: str,
        name: str,
        scopes: Iterable[Scope],
        *,
        deployment_id: str | None = None,
        expires_at: int | None = None,
        service_account_id: str | None = None,
    ) -> tuple[KeyRecord, str]:
        """A new API key and its secret, which is shown this once.

        It is the actor's own, or a service account's (with the permission ``members``). The caller
        has looked up that the deployment is the workspace's. Two active keys of one holder may
        have the same name, for overlap. A key or a command line's login that makes a key gives no
        longer life than its own; ending the login revokes the key.
        Raises ForbiddenError (a scope that the holder's role does not allow), ConflictError,
        InvalidError, NotFoundError.
        """
        require(actor, Permission.KEYS, workspace_id)
        wanted = frozenset(scopes)
        check_name(name, "the API key's name")
        check_deployment_id(deployment_id)
        if not wanted:
            raise InvalidError("an API key needs a scope", hint=f"Scopes: {', '.join(Scope)}.")
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            lock_login(change.session, actor)
            holder = _holder(change.session, actor, workspace_id, service_account_id)
            _check_scopes(wanted, holder.role)
            expires_at = _bounded_expiry(change, actor, expires_at)
            return self._add(
                change, actor, workspace_id, name, wanted, deployment_id, expires_at, holder
            )

    def rotate_key(
        self, actor: Actor, workspace_id: str, key_id: str, *, overlap_s: int
    ) -> tuple[KeyRecord, str]:
        """A successor with the same name, scopes, deployment and holder, and its secret.

        It is the actor's own key, or a service account's (with the permission ``members``): the
        secret is nobody else's to learn. The old key is valid for ``overlap_s`` more; the new one
        does not expire. Raises NotFoundError, ForbiddenError (a command line's login too),
        ConflictError (it has a successor already), InvalidError.
        """
        require(actor, Permission.KEYS, workspace_id)
        if actor.login_expires_at is not None:
            raise ForbiddenError(
                "a successor would end with this login on the command line",
                hint="Rotate the key in the console, or with an API key.",
            )
        if not 0 <= overlap_s <= 90 * 86_400:
            raise InvalidError("overlap_s must be 0 to 7776000 seconds (90 days)")
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            old = _find(change.session, workspace_id, key_id)
            role = role_of_holder(change.session, old)
            _require_may_rotate(actor, old, role)
            if not _is_active(old, role, change.now):
                raise ConflictError("the API key is not active any more", hint="Make a new one.")
            holder = _Holder(old.user_id, old.service_account_id, role)
            wanted = _scopes(old)
            _check_scopes(wanted, role)
            expiry = _bounded_expiry(change, actor, None)
            record, secret = self._add(
                change, actor, workspace_id, old.name, wanted, old.deployment_id, expiry, holder
            )
            until = change.now + overlap_s
            old.expires_at = until if old.expires_at is None else min(old.expires_at, until)
            return record, secret

    def revoke_key(self, actor: Actor, workspace_id: str, key_id: str) -> KeyRecord:
        """End a key now. One's own needs the permission ``keys``, another's ``members``.

        Raises NotFoundError, ForbiddenError.
        """
        require(actor, Permission.KEYS, workspace_id)
        with self._changing() as change:
            row = _find(change.session, workspace_id, key_id)
            _require_may_revoke(actor, row)
            if row.revoked_at is None:
                row.revoked_at = change.now
                change.note(AccessEventKind.API_KEY_REVOKED, actor, workspace_id, row.id)
            return _record(row, None, change.now)

    def revoke_deployment_keys(self, deployment_id: str) -> None:
        """End the keys that are for one deployment only. For the program, once it is deleted."""
        with self._changing() as change:
            for row in change.session.scalars(
                select(ApiKeyRow).where(
                    ApiKeyRow.deployment_id == deployment_id, ApiKeyRow.revoked_at.is_(None)
                )
            ):
                row.revoked_at = change.now
                change.note(AccessEventKind.API_KEY_REVOKED, None, row.workspace_id, row.id)

    def deployments_with_keys(self) -> list[str]:
        """The ids of the deployments that keys which were not revoked are for. For the program."""
        with self._database.reading() as session:
            found = session.scalars(
                select(ApiKeyRow.deployment_id)
                .where(ApiKeyRow.deployment_id.is_not(None), ApiKeyRow.revoked_at.is_(None))
                .distinct()
            )
            return [deployment_id for deployment_id in found if deployment_id is not None]

    def list_keys(self, actor: Actor, workspace_id: str) -> list[KeyRecord]:
        """The workspace's API keys without their secrets, by name, newest first."""
        require(actor, Permission.VIEW, workspace_id)
        now = int(self._now())
        with self._database.reading() as session:
            rows = session.scalars(
                select(ApiKeyRow)
                .where(ApiKeyRow.workspace_id == workspace_id)
                .order_by(ApiKeyRow.name, ApiKeyRow.created_at.desc(), ApiKeyRow.id)
            ).all()
            roles = roles_of_holders(session, rows)
            return [_record(row, roles[row.id], now) for row in rows]

    def gateway_keys(self, workspace_id: str, deployment_id: str) -> list[ApiKeyRecord]:
        """What the ``api_keys.json`` of a deployment has to hold now. For the program."""
        now = int(self._now())
        with self._database.reading() as session:
            rows = session.scalars(
                select(ApiKeyRow).where(
                    ApiKeyRow.workspace_id == workspace_id,
                    ApiKeyRow.revoked_at.is_(None),
                    or_(
                        ApiKeyRow.deployment_id.is_(None),
                        ApiKeyRow.deployment_id == deployment_id,
                    ),
                )
            ).all()
            roles = roles_of_holders(session, rows)
            held = [
                HeldKey(_record(row, roles[row.id], now), row.sha256, roles[row.id]) for row in rows
            ]
        return gateway_records(held, workspace_id, deployment_id, now)

    def authenticate_key(self, secret: str) -> Actor:
        """Whose API key it is, with the roles that its holder has now.

        Raises UnauthenticatedError, always with the same words.
        """
        if len(secret) > MAX_TOKEN_CHARS or not secret.startswith(KEY_PREFIX):
            raise _unknown()
        now = int(self._now())
        with self._database.reading() as session:
            digest = hash_api_key(secret.encode("utf-8", "replace").decode())
            row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.sha256 == digest))
            role = role_of_holder(session, row) if row is not None else None
            if row is None or role is None or not _is_active(row, role, now):
                raise _unknown()
            actor = _actor(session, row, role)
            key_id, used_at = row.id, row.last_used_at
        if used_at is None or now - used_at >= NOTE_USE_EVERY_S:
            with self._database.transaction() as session:
                session.get_one(ApiKeyRow, key_id).last_used_at = now
        return actor

    def _add(
        self,
        change: Change,
        actor: Actor,
        workspace_id: str,
        name: str,
        scopes: frozenset[Scope],
        deployment_id: str | None,
        expires_at: int | None,
        holder: "_Holder",
    ) -> tuple[KeyRecord, str]:
        active = _active_rows(change, workspace_id)
        same = [
            row
            for row in active
            if row.name == name
            and (row.user_id, row.service_account_id) == (holder.user_id, holder.account_id)
        ]
        if len(same) >= MAX_ACTIVE_OF_A_NAME:
            raise ConflictError(
                f"there are {len(same)} active API keys named {name}", hint="Revoke one first."
            )
        if len(active) >= MAX_ACTIVE_IN_A_WORKSPACE:
            raise ConflictError(f"a workspace has at most {MAX_ACTIVE_IN_A_WORKSPACE} active keys")
        if actor.person is None:
            raise ForbiddenError("nobody answers for this API key's maker")
        secret = make_api_key(self._random_bytes(32))
        row = ApiKeyRow(
            id=make_id("key", self._random_bytes),
            workspace_id=workspace_id,
            deployment_id=deployment_id,
            name=name,
            sha256=hash_api_key(secret),
            scopes=" ".join(sorted(scopes)),
            user_id=holder.user_id,
            service_account_id=holder.account_id,
            person_id=actor.person,
            created_at=change.now,
            expires_at=expires_at,
            login_sha256=actor.login_sha256,
        )
        change.session.add(row)
        detail = row.scopes
        change.note(AccessEventKind.API_KEY_CREATED, actor, workspace_id, row.id, detail)
        return _record(row, holder.role, change.now), secret


@dataclass(frozen=True, slots=True)
class _Holder:
    user_id: str | None
    account_id: str | None
    role: Role | None


def _holder(
    session: Session, actor: Actor, workspace_id: str, service_account_id: str | None
) -> _Holder:
    """Whom the key is for."""
    if service_account_id is None:
        if actor.kind is ActorKind.SERVICE:
            return _Holder(None, actor.id, actor.roles[workspace_id])
        return _Holder(actor.person, None, actor.roles[workspace_id])
    require(actor, Permission.MEMBERS, workspace_id)
    known = is_id(service_account_id)
    account = session.get(ServiceAccountRow, service_account_id) if known else None
    if account is None or account.workspace_id != workspace_id or account.deleted_at is not None:
        raise NotFoundError("there is no such service account")
    require_may_give(actor.roles[workspace_id], Role(account.role))
    return _Holder(None, account.id, Role(account.role))


def _check_scopes(wanted: frozenset[Scope], role: Role | None) -> None:
    allowed = allowed_scopes(role) if role is not None else frozenset()
    if not wanted <= allowed:
        names = ", ".join(sorted(allowed)) or "none"
        raise ForbiddenError(
            f"the role {role} allows no API key with the scope {min(wanted - allowed)}",
            hint=f"It allows: {names}.",
        )


def _bounded_expiry(change: Change, actor: Actor, expires_at: int | None) -> int | None:
    """The expiry that a key gets. Raises InvalidError for the past and the far future."""
    if expires_at is not None and not 0 < expires_at - change.now <= LONGEST_LIFE_S:
        raise InvalidError("expires_at must lie in the future, by ten years at most")
    ends = (expires_at, actor.key_expires_at, actor.login_expires_at)
    return min((end for end in ends if end is not None), default=None)


def _find(session: Session, workspace_id: str, key_id: str) -> ApiKeyRow:
    """A key of the workspace, locked. Raises NotFoundError."""
    query = select(ApiKeyRow).where(ApiKeyRow.id == key_id).with_for_update()
    row = session.scalar(query) if is_id(key_id) else None
    if row is None or row.workspace_id != workspace_id:
        raise NotFoundError("there is no such API key")
    return row


def _is_own(actor: Actor, row: ApiKeyRow) -> bool:
    if actor.kind is ActorKind.SERVICE:
        return row.service_account_id == actor.id
    return row.user_id is not None and row.user_id == actor.person


def _require_may_revoke(actor: Actor, row: ApiKeyRow) -> None:
    if not _is_own(actor, row) and not may(actor, Permission.MEMBERS, row.workspace_id):
        raise ForbiddenError("this API key is somebody else's", hint="Ask an owner or an admin.")


def _require_may_rotate(actor: Actor, row: ApiKeyRow, role: Role | None) -> None:
    """``role``: the holder's. Whoever rotates a key holds the secret of its successor."""
    if _is_own(actor, row):
        return
    if row.service_account_id is None:
        raise ForbiddenError(
            "this API key is somebody else's",
            hint="Only its holder replaces it; an owner or an admin can revoke it.",
        )
    require(actor, Permission.MEMBERS, row.workspace_id)
    if role is not None:
        require_may_give(actor.roles[row.workspace_id], role)


def _active_rows(change: Change, workspace_id: str) -> list[ApiKeyRow]:
    query = select(ApiKeyRow).where(
        ApiKeyRow.workspace_id == workspace_id,
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > change.now),
    )
    return list(change.session.scalars(query))


def _is_active(row: ApiKeyRow, role: Role | None, now: int) -> bool:
    if role is None or row.revoked_at is not None:
        return False
    return row.expires_at is None or now < row.expires_at


def _actor(session: Session, row: ApiKeyRow, role: Role) -> Actor:
    """Scopes that the holder's role allows no more are left out."""
    if row.service_account_id is not None:
        kind, holder = ActorKind.SERVICE, row.service_account_id
        name = session.get_one(ServiceAccountRow, holder).name
    else:
        kind, holder = ActorKind.API_KEY, row.id
        name = f"{session.get_one(UserRow, row.user_id).name} ({row.name})"
    return Actor(
        id=holder,
        name=name,
        kind=kind,
        roles={row.workspace_id: role},
        scopes=_scopes(row) & allowed_scopes(role),
        deployment=row.deployment_id,
        person=row.person_id,
        key_expires_at=row.expires_at,
        login_sha256=row.login_sha256,
    )


def _scopes(row: ApiKeyRow) -> frozenset[Scope]:
    return frozenset(Scope(name) for name in row.scopes.split())


def _record(row: ApiKeyRow, role: Role | None, now: int) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        workspace_id=row.workspace_id,
        deployment_id=row.deployment_id,
        name=row.name,
        scopes=_scopes(row),
        user_id=row.user_id,
        service_account_id=row.service_account_id,
        person_id=row.person_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        active=_is_active(row, role, now),
    )


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError(
        "the API key is not valid",
        hint="A key that kvrun init printed is the gateway's only. Make one for the API in the"
        " console, under API keys.",
    )
