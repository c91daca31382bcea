"""Roles as they are stored now: of people, of service accounts, of whoever holds an API key."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Role
from kvrun.accounts.errors import ConflictError, ForbiddenError, NotFoundError
from kvrun.accounts.tables import (
    ApiKeyRow,
    MemberRow,
    ServiceAccountRow,
    UserRow,
    WorkspaceRow,
)


def roles_of(session: Session, user: UserRow) -> dict[str, Role]:
    """A person's role by workspace id. The local owner owns every workspace.

    In a deleted workspace owners, admins and auditors may still read, as auditors do.
    """
    if user.is_local_owner:
        found = session.execute(select(WorkspaceRow.id, WorkspaceRow.deleted_at)).all()
        return {place: Role.AUDITOR if gone else Role.OWNER for place, gone in found}
    rows = session.execute(
        select(MemberRow.workspace_id, MemberRow.role, WorkspaceRow.deleted_at)
        .join(WorkspaceRow, WorkspaceRow.id == MemberRow.workspace_id)
        .where(MemberRow.user_id == user.id)
    ).all()
    roles = {}
    for place, role, gone in rows:
        if not gone:
            roles[place] = Role(role)
        elif role in _READ_ON:
            roles[place] = Role.AUDITOR
    return roles


def role_of_holder(session: Session, key: ApiKeyRow) -> Role | None:
    """The role, in the key's workspace, of the person or service account that holds an API key."""
    if key.service_account_id is not None:
        account = session.get_one(ServiceAccountRow, key.service_account_id)
        return Role(account.role) if account.deleted_at is None else None
    return roles_of(session, session.get_one(UserRow, key.user_id)).get(key.workspace_id)


def roles_of_holders(session: Session, keys: Iterable[ApiKeyRow]) -> dict[str, Role | None]:
    """:func:`role_of_holder` for many keys, by key id."""
    known: dict[tuple[str | None, str | None, str], Role | None] = {}
    found = {}
    for key in keys:
        holder = (key.user_id, key.service_account_id, key.workspace_id)
        if holder not in known:
            known[holder] = role_of_holder(session, key)
        found[key.id] = known[holder]
    return found


def locked_workspace(session: Session, workspace_id: str) -> WorkspaceRow:
    """A workspace's row, locked against other changes until the transaction ends.

    Raises NotFoundError, and ConflictError for one that is being deleted.
    """
    row = session.scalar(
        select(WorkspaceRow).where(WorkspaceRow.id == workspace_id).with_for_update()
    )
    if row is None:
        raise NotFoundError("there is no such workspace")
    if row.closing_at is not None or row.deleted_at is not None:
        raise ConflictError("the workspace is being deleted, or is: nothing changes in it any more")
    return row


def require_may_give(own: Role | None, *roles: Role) -> None:
    """Only owners give and take the role owner. Raises ForbiddenError."""
    if Role.OWNER in roles and own is not Role.OWNER:
        raise ForbiddenError("only an owner can give or take the role owner")


_READ_ON = frozenset({Role.OWNER, Role.ADMIN, Role.AUDITOR})
