"""Workspaces: made, listed, closed and deleted."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor, ActorKind, Role
from kvrun.accounts.checks import check_name, check_workspace_name
from kvrun.accounts.errors import ConflictError, ForbiddenError, NotFoundError
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.part import Change, Part
from kvrun.accounts.permissions import Permission, require, sees
from kvrun.accounts.records import Workspace
from kvrun.accounts.tables import (
    AccountRow,
    ApiKeyRow,
    MemberRow,
    ServiceAccountRow,
    WorkspaceRow,
)
from kvrun.accounts.tokens import make_id

DEFAULT_ACCOUNT = "default"


class Workspaces(Part):
    """The part of Accounts about workspaces."""

    def ensure_workspace(self, name: str) -> Workspace:
        """The workspace of that name, made where it is missing. For the program, not for callers.

        Raises ConflictError when it was deleted: its name is not given again.
        """
        check_name(name, "the workspace")
        with self._changing() as change:
            row = change.session.scalar(select(WorkspaceRow).where(WorkspaceRow.name == name))
            if row is None:
                account = self._account(change, DEFAULT_ACCOUNT)
                row = self._make_workspace(change, None, account, name)
            if row.deleted_at is not None:
                raise _taken(name)
            return _workspace(row)

    def create_workspace(self, actor: Actor, name: str) -> Workspace:
        """A new workspace, whose owner is the actor.

        The local owner may, and people who own another workspace. Raises ForbiddenError,
        ConflictError (the name is or was taken), InvalidError.
        """
        check_workspace_name(name)
        if actor.kind not in (ActorKind.USER, ActorKind.LOCAL_OWNER):
            raise ForbiddenError("only people make workspaces, not API keys")
        with self._changing() as change:
            account = self._account_for(change, actor)
            taken = select(WorkspaceRow.id).where(WorkspaceRow.name == name)
            if change.session.scalar(taken) is not None:
                raise _taken(name)
            row = self._make_workspace(change, actor, account, name)
            if actor.kind is ActorKind.USER:
                change.session.add(
                    MemberRow(
                        workspace_id=row.id,
                        user_id=actor.id,
                        role=Role.OWNER.value,
                        from_group=False,
                        added_by=actor.id,
                        added_at=change.now,
                    )
                )
            return _workspace(row)

    def list_workspaces(self, actor: Actor) -> list[Workspace]:
        """The workspaces in which the actor may do anything, deleted ones included, by name."""
        with self._database.reading() as session:
            rows = session.scalars(select(WorkspaceRow).order_by(WorkspaceRow.name)).all()
            return [_workspace(row) for row in rows if sees(actor, row.id)]

    def get_workspace(self, actor: Actor, workspace_id: str) -> Workspace:
        """One workspace. Raises NotFoundError, or ForbiddenError without the permission view."""
        require(actor, Permission.VIEW, workspace_id)
        with self._database.reading() as session:
            return _workspace(_row(session, workspace_id))

    def workspaces_of_account(self, workspace_id: str) -> list[Workspace]:
        """The workspaces, but deleted ones, of the account that owns this one, by name.

        For the program, not for callers. Raises NotFoundError.
        """
        with self._database.reading() as session:
            account = _row(session, workspace_id).account_id
            query = select(WorkspaceRow).where(
                WorkspaceRow.account_id == account, WorkspaceRow.deleted_at.is_(None)
            )
            rows = session.scalars(query.order_by(WorkspaceRow.name)).all()
            return [_workspace(row) for row in rows]

    def close_workspace(self, actor: Actor, workspace_id: str) -> Workspace:
        """Begin to delete: from now on nothing new is made in it. It can be called again.

        Afterwards its evidence is written and its keys are erased; then comes
        :meth:`delete_workspace`. Raises NotFoundError, ForbiddenError.
        """
        require(actor, Permission.DELETE_WORKSPACE, workspace_id)
        with self._changing() as change:
            row = _row(change.session, workspace_id, lock=True)
            if row.closing_at is None:
                row.closing_at = change.now
                change.note(AccessEventKind.WORKSPACE_CLOSED, actor, row.id, row.id)
            return _workspace(row)

    def delete_workspace(self, actor: Actor, workspace_id: str) -> Workspace:
        """End a closed workspace: its API keys and service accounts are gone, it can be read on.

        Raises ConflictError when it was not closed before.
        """
        require(actor, Permission.DELETE_WORKSPACE, workspace_id)
        with self._changing() as change:
            row = _row(change.session, workspace_id, lock=True)
            if row.closing_at is None:
                raise ConflictError(
                    "the workspace is open", hint="Close it, write its evidence, erase its keys."
                )
            for key in change.session.scalars(
                select(ApiKeyRow).where(
                    ApiKeyRow.workspace_id == row.id, ApiKeyRow.revoked_at.is_(None)
                )
            ):
                key.revoked_at = change.now
            for account in change.session.scalars(
                select(ServiceAccountRow).where(
                    ServiceAccountRow.workspace_id == row.id,
                    ServiceAccountRow.deleted_at.is_(None),
                )
            ):
                account.deleted_at = change.now
            row.deleted_at = change.now
            change.note(AccessEventKind.WORKSPACE_DELETED, actor, row.id, row.id)
            return _workspace(row)

    def _account_for(self, change: Change, actor: Actor) -> AccountRow:
        """The account in which the actor may make a workspace."""
        if actor.kind is ActorKind.LOCAL_OWNER:
            return self._account(change, DEFAULT_ACCOUNT)
        owned = [place for place, role in actor.roles.items() if role is Role.OWNER]
        mine = select(WorkspaceRow.account_id).where(WorkspaceRow.id.in_(owned))
        query = select(AccountRow).where(AccountRow.id.in_(mine)).order_by(AccountRow.name)
        row = change.session.scalar(query.limit(1).with_for_update())
        if row is None:
            raise ForbiddenError(
                "only people who own a workspace make further ones",
                hint="Ask an owner, or sign in with the owner link.",
            )
        return row

    def _account(self, change: Change, name: str) -> AccountRow:
        """The account of that name, made where it is missing."""
        row = change.session.scalar(select(AccountRow).where(AccountRow.name == name))
        if row is None:
            row = AccountRow(
                id=make_id("acc", self._random_bytes), name=name, created_at=change.now
            )
            change.session.add(row)
            change.session.flush()
            change.note(AccessEventKind.ACCOUNT_CREATED, None, None, row.id)
        return row

    def _make_workspace(
        self, change: Change, actor: Actor | None, account: AccountRow, name: str
    ) -> WorkspaceRow:
        row = WorkspaceRow(
            id=make_id("ws", self._random_bytes),
            account_id=account.id,
            name=name,
            created_at=change.now,
        )
        change.session.add(row)
        change.session.flush()
        change.note(AccessEventKind.WORKSPACE_CREATED, actor, row.id, row.id)
        return row


def _row(session: Session, workspace_id: str, *, lock: bool = False) -> WorkspaceRow:
    query = select(WorkspaceRow).where(WorkspaceRow.id == workspace_id)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise NotFoundError("there is no such workspace or deployment")
    return row


def _taken(name: str) -> ConflictError:
    return ConflictError(
        f"there is, or was, a workspace named {name}",
        hint="The name of a deleted workspace is not given again: its log stays under it.",
    )


def _workspace(row: WorkspaceRow) -> Workspace:
    return Workspace(
        row.id, row.account_id, row.name, row.created_at, row.closing_at, row.deleted_at
    )
