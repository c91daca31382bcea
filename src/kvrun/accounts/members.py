"""People in workspaces, and service accounts."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor, ActorKind, Role
from kvrun.accounts.checks import check_email, check_name, is_id
from kvrun.accounts.errors import ConflictError, InvalidError, NotFoundError
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.part import Change, Part
from kvrun.accounts.permissions import Permission, require
from kvrun.accounts.records import Member, ServiceAccount
from kvrun.accounts.roles import locked_workspace, require_may_give
from kvrun.accounts.sign_ins import end_logins
from kvrun.accounts.tables import (
    ApiKeyRow,
    MemberRow,
    ServiceAccountRow,
    UserRow,
    WorkspaceRow,
)
from kvrun.accounts.tokens import make_id


class Members(Part):
    """The part of Accounts about members and service accounts."""

    def list_members(self, actor: Actor, workspace_id: str) -> list[Member]:
        """Everybody with a role in the workspace, by e-mail address."""
        require(actor, Permission.VIEW, workspace_id)
        with self._database.reading() as session:
            rows = session.execute(
                select(MemberRow, UserRow)
                .join(UserRow, UserRow.id == MemberRow.user_id)
                .where(MemberRow.workspace_id == workspace_id)
                .order_by(UserRow.email, UserRow.id)
            ).all()
            return [_member(member, user) for member, user in rows]

    def add_member(self, actor: Actor, workspace_id: str, email: str, role: Role) -> Member:
        """Give a person a role. Somebody new is let in at the first sign-in with that address.

        Raises ConflictError for who is a member already, ForbiddenError, InvalidError.
        """
        require(actor, Permission.MEMBERS, workspace_id)
        require_may_give(actor.roles[workspace_id], role)
        address = check_email(email)
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            user = change.session.scalar(
                select(UserRow)
                .where(UserRow.email == address, UserRow.is_local_owner.is_(False))
                .order_by(UserRow.created_at, UserRow.id)
                .limit(1)
            )
            if user is None:
                user = UserRow(
                    id=make_id("user", self._random_bytes),
                    email=address,
                    name=address,
                    is_local_owner=False,
                    created_at=change.now,
                )
                change.session.add(user)
                change.session.flush()
            if change.session.get(MemberRow, (workspace_id, user.id)) is not None:
                raise ConflictError("this person is a member already", hint="Change the role.")
            member = MemberRow(
                workspace_id=workspace_id,
                user_id=user.id,
                role=role.value,
                from_group=False,
                added_by=actor.id,
                added_at=change.now,
            )
            change.session.add(member)
            change.note(AccessEventKind.MEMBER_ADDED, actor, workspace_id, user.id, role.value)
            return _member(member, user)

    def set_role(self, actor: Actor, workspace_id: str, user_id: str, role: Role) -> Member:
        """Change a member's role; a sign-in that is open has it with its next request.

        Raises NotFoundError, ForbiddenError, ConflictError (the last owner; a role that comes
        from a group).
        """
        require(actor, Permission.MEMBERS, workspace_id)
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            member = _find(change.session, workspace_id, user_id)
            before = Role(member.role)
            require_may_give(actor.roles[workspace_id], before, role)
            if member.from_group:
                raise ConflictError(
                    "this role comes from a group of the identity provider",
                    hint="Change the group there, or the mapping control.oidc_roles.",
                )
            if before is not role:
                _keep_an_owner(change.session, actor, member)
                member.role = role.value
                detail = f"{before.value} -> {role.value}"
                change.note(AccessEventKind.ROLE_CHANGED, actor, workspace_id, user_id, detail)
            return _member(member, change.session.get_one(UserRow, user_id))

    def remove_member(self, actor: Actor, workspace_id: str, user_id: str) -> None:
        """Take a person's role. Their API keys of the workspace and their logins on command lines
        end.

        Raises NotFoundError, ForbiddenError, ConflictError (the last owner).
        """
        require(actor, Permission.MEMBERS, workspace_id)
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            member = _find(change.session, workspace_id, user_id)
            require_may_give(actor.roles[workspace_id], Role(member.role))
            _keep_an_owner(change.session, actor, member)
            remove(change, actor, member)

    def create_service_account(
        self, actor: Actor, workspace_id: str, name: str, role: Role
    ) -> ServiceAccount:
        """An identity for a program; it acts through API keys that are made for it.

        Raises InvalidError for the role owner, ConflictError for a name that is taken.
        """
        require(actor, Permission.MEMBERS, workspace_id)
        check_name(name, "the service account's name")
        if role is Role.OWNER:
            raise InvalidError("a service account cannot be an owner", hint="Owners are people.")
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            taken = select(ServiceAccountRow.id).where(
                ServiceAccountRow.workspace_id == workspace_id,
                ServiceAccountRow.name == name,
                ServiceAccountRow.deleted_at.is_(None),
            )
            if change.session.scalar(taken) is not None:
                raise ConflictError("there is a service account of that name")
            row = ServiceAccountRow(
                id=make_id("svc", self._random_bytes),
                workspace_id=workspace_id,
                name=name,
                role=role.value,
                created_by=actor.id,
                created_at=change.now,
            )
            change.session.add(row)
            change.note(
                AccessEventKind.SERVICE_ACCOUNT_CREATED, actor, workspace_id, row.id, role.value
            )
            return _service_account(row)

    def list_service_accounts(self, actor: Actor, workspace_id: str) -> list[ServiceAccount]:
        """The workspace's service accounts, deleted ones included, by name."""
        require(actor, Permission.VIEW, workspace_id)
        with self._database.reading() as session:
            rows = session.scalars(
                select(ServiceAccountRow)
                .where(ServiceAccountRow.workspace_id == workspace_id)
                .order_by(ServiceAccountRow.name, ServiceAccountRow.created_at)
            )
            return [_service_account(row) for row in rows]

    def delete_service_account(self, actor: Actor, workspace_id: str, account_id: str) -> None:
        """End a service account and its API keys. Raises NotFoundError, ForbiddenError."""
        require(actor, Permission.MEMBERS, workspace_id)
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            known = is_id(account_id)
            row = change.session.get(ServiceAccountRow, account_id) if known else None
            if row is None or row.workspace_id != workspace_id or row.deleted_at is not None:
                raise NotFoundError("there is no such service account")
            row.deleted_at = change.now
            for key in change.session.scalars(
                select(ApiKeyRow).where(
                    ApiKeyRow.service_account_id == row.id, ApiKeyRow.revoked_at.is_(None)
                )
            ):
                key.revoked_at = change.now
            change.note(AccessEventKind.SERVICE_ACCOUNT_DELETED, actor, workspace_id, row.id)


def sync_groups(change: Change, user: UserRow, roles: Mapping[str, Role]) -> None:
    """Bring a person's roles in line with their groups: ``roles`` by workspace name.

    A role that a member was given by hand stays as it is.
    """
    session = change.session
    named = session.scalars(select(WorkspaceRow).where(WorkspaceRow.name.in_(roles))).all()
    held = {
        row.workspace_id: row
        for row in session.scalars(select(MemberRow).where(MemberRow.user_id == user.id))
    }
    for place, member in held.items():
        if member.from_group and place not in {row.id for row in named}:
            remove(change, None, member)
    for place, role in ((row.id, roles[row.name]) for row in named if not row.closing_at):
        known = held.get(place)
        if known is None:
            session.add(
                MemberRow(
                    workspace_id=place,
                    user_id=user.id,
                    role=role.value,
                    from_group=True,
                    added_by="",
                    added_at=change.now,
                )
            )
            detail = f"{role.value}, by group"
            change.note(AccessEventKind.MEMBER_ADDED, None, place, user.id, detail)
        elif known.from_group and known.role != role.value:
            detail = f"{known.role} -> {role.value}, by group"
            known.role = role.value
            change.note(AccessEventKind.ROLE_CHANGED, None, place, user.id, detail)


def remove(change: Change, actor: Actor | None, member: MemberRow) -> None:
    """Take a role, revoke the API keys that its holder has in the workspace, and end logins."""
    end_logins(change, actor, member.user_id)
    for key in change.session.scalars(
        select(ApiKeyRow).where(
            ApiKeyRow.user_id == member.user_id,
            ApiKeyRow.workspace_id == member.workspace_id,
            ApiKeyRow.revoked_at.is_(None),
        )
    ):
        key.revoked_at = change.now
    change.session.delete(member)
    change.note(
        AccessEventKind.MEMBER_REMOVED, actor, member.workspace_id, member.user_id, member.role
    )


def _find(session: Session, workspace_id: str, user_id: str) -> MemberRow:
    known = is_id(user_id)
    member = session.get(MemberRow, (workspace_id, user_id)) if known else None
    if member is None:
        raise NotFoundError("there is no such member")
    return member


def _keep_an_owner(session: Session, actor: Actor, member: MemberRow) -> None:
    """Refuse to lose the last owner; the local owner, who owns every workspace, may."""
    if member.role != Role.OWNER or actor.kind is ActorKind.LOCAL_OWNER:
        return
    owners = session.scalar(
        select(func.count())
        .select_from(MemberRow)
        .where(MemberRow.workspace_id == member.workspace_id, MemberRow.role == Role.OWNER.value)
    )
    if owners == 1:
        raise ConflictError("this is the last owner", hint="Make somebody else an owner first.")


def _member(member: MemberRow, user: UserRow) -> Member:
    return Member(
        user_id=user.id,
        email=user.email,
        name=user.name,
        role=Role(member.role),
        from_group=member.from_group,
        added_at=member.added_at,
        last_sign_in_at=user.last_sign_in_at,
        signed_in=user.subject is not None,
    )


def _service_account(row: ServiceAccountRow) -> ServiceAccount:
    return ServiceAccount(
        row.id, row.workspace_id, row.name, Role(row.role), row.created_at, row.deleted_at
    )
