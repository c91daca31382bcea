"""The second person: erasing more than one tenant needs another's word, where there is another."""

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor, ActorKind, Role
from kvrun.accounts.checks import check_deployment_id, check_word, is_id
from kvrun.accounts.errors import (
    ApprovalNeededError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from kvrun.accounts.events import AccessEventKind
from kvrun.accounts.part import Part
from kvrun.accounts.permissions import ROLE_PERMISSIONS, Permission, require
from kvrun.accounts.records import Approval
from kvrun.accounts.roles import locked_workspace
from kvrun.accounts.tables import ApprovalRow, MemberRow, UserRow
from kvrun.accounts.tokens import make_id

APPROVAL_LASTS_S = 24 * 3600
MAX_PLAN_CHARS = 200
MAX_SUBJECT_CHARS = 320
MAX_REASON_CHARS = 500
MAX_WAITING = 100
"""Approvals of a workspace that wait at a time."""


class Approvals(Part):
    """The part of Accounts about approvals. They are bound to the token of one erasure plan."""

    def approval_needed(self, actor: Actor, workspace_id: str) -> bool:
        """Whether the workspace has another person who may erase more than one tenant."""
        require(actor, Permission.ERASE_WIDE, workspace_id)
        with self._database.reading() as session:
            return _has_second(session, actor, workspace_id)

    def ask_approval(
        self,
        actor: Actor,
        workspace_id: str,
        operation: str,
        plan: str,
        *,
        deployment_id: str | None = None,
        tenants: int | None = None,
        sessions: int | None = None,
        subject: str = "",
        token: str = "",
    ) -> Approval:
        """Ask for it. ``operation`` is a word such as ``erase_deployment``; ``plan`` its token, or
        its digest where ``token`` is given.

        The caller has had the token checked; ``tenants`` and ``sessions`` are what the plan would
        reach, and ``subject`` the label that it is about, for whoever is to agree. Raises
        NotFoundError, ForbiddenError, InvalidError, ConflictError (too many wait).
        """
        require(actor, Permission.ERASE_WIDE, workspace_id)
        check_word(plan, "plan", MAX_PLAN_CHARS)
        check_word(operation, "operation", 64)
        check_deployment_id(deployment_id)
        if actor.person is None:
            raise ForbiddenError("nobody answers for whoever asks")
        with self._changing() as change:
            locked_workspace(change.session, workspace_id)
            waiting = change.session.scalars(
                select(ApprovalRow.id).where(
                    ApprovalRow.workspace_id == workspace_id,
                    ApprovalRow.agreed.is_(None),
                    ApprovalRow.expires_at > change.now,
                )
            ).all()
            if len(waiting) >= MAX_WAITING:
                raise ConflictError(f"{MAX_WAITING} approvals wait already")
            row = ApprovalRow(
                id=make_id("apr", self._random_bytes),
                workspace_id=workspace_id,
                deployment_id=deployment_id,
                operation=operation,
                plan=plan,
                asked_by=actor.id,
                person_id=actor.person,
                asked_at=change.now,
                expires_at=change.now + APPROVAL_LASTS_S,
                tenants=tenants,
                sessions=sessions,
                subject=subject[:MAX_SUBJECT_CHARS],
                token=token,
            )
            change.session.add(row)
            change.note(AccessEventKind.APPROVAL_ASKED, actor, workspace_id, row.id, operation)
            return _approval(row)

    def list_approvals(self, actor: Actor, workspace_id: str) -> list[Approval]:
        """Those that were asked for, newest first, 200 at most."""
        require(actor, Permission.ERASE_WIDE, workspace_id)
        with self._database.reading() as session:
            rows = session.scalars(
                select(ApprovalRow)
                .where(ApprovalRow.workspace_id == workspace_id)
                .order_by(ApprovalRow.asked_at.desc(), ApprovalRow.id)
                .limit(200)
            )
            return [_approval(row) for row in rows]

    def approve(self, actor: Actor, workspace_id: str, approval_id: str) -> Approval:
        """Agree, as a signed-in person who did not ask.

        Raises ForbiddenError (the same person, an API key, the local owner), NotFoundError,
        ConflictError (decided or expired).
        """
        return self._decide(actor, workspace_id, approval_id, agreed=True)

    def refuse_approval(
        self, actor: Actor, workspace_id: str, approval_id: str, reason: str = ""
    ) -> Approval:
        """Do not agree. Whoever asked may take it back so, and reads the reason.

        Raises InvalidError for a reason that is no line of 500 characters at most.
        """
        if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
            raise InvalidError(f"the reason is one line of {MAX_REASON_CHARS} characters at most")
        return self._decide(actor, workspace_id, approval_id, agreed=False, reason=reason)

    def take_approval(
        self,
        actor: Actor,
        workspace_id: str,
        operation: str,
        plan: str,
        *,
        deployment_id: str | None = None,
    ) -> Approval | None:
        """Use an approval for exactly this operation and plan; to be called right before erasing.

        None where no second person is there to ask. Raises ApprovalNeededError, ForbiddenError,
        NotFoundError.
        """
        require(actor, Permission.ERASE_WIDE, workspace_id)
        check_word(plan, "plan", MAX_PLAN_CHARS)
        check_word(operation, "operation", 64)
        check_deployment_id(deployment_id)
        with self._changing() as change:
            if not _has_second(change.session, actor, workspace_id):
                change.note(
                    AccessEventKind.APPROVAL_TAKEN, actor, workspace_id, "", "no second person"
                )
                return None
            row = change.session.scalar(
                select(ApprovalRow)
                .where(
                    ApprovalRow.workspace_id == workspace_id,
                    ApprovalRow.deployment_id == deployment_id,
                    ApprovalRow.operation == operation,
                    ApprovalRow.plan == plan,
                    ApprovalRow.agreed.is_(True),
                    ApprovalRow.taken_at.is_(None),
                    ApprovalRow.expires_at > change.now,
                )
                .limit(1)
                .with_for_update()
            )
            if row is None or not _may_agree(change.session, workspace_id, row.decided_by):
                raise ApprovalNeededError(
                    "erasing more than one tenant needs a second person's approval here",
                    hint="Ask for it with the plan's token; it holds for 24 hours and one use.",
                )
            row.taken_at = change.now
            change.note(AccessEventKind.APPROVAL_TAKEN, actor, workspace_id, row.id, operation)
            return _approval(row)

    def give_back_approval(self, approval: Approval) -> None:
        """Make one that was taken usable again: its erasure did not begin. For the program."""
        with self._changing() as change:
            query = select(ApprovalRow).where(ApprovalRow.id == approval.id).with_for_update()
            row = change.session.scalar(query)
            if row is not None and row.taken_at is not None:
                row.taken_at = None
                kind = AccessEventKind.APPROVAL_GIVEN_BACK
                change.note(kind, None, row.workspace_id, row.id, row.operation)

    def _decide(
        self,
        actor: Actor,
        workspace_id: str,
        approval_id: str,
        *,
        agreed: bool,
        reason: str = "",
    ) -> Approval:
        require(actor, Permission.ERASE_WIDE, workspace_id)
        if agreed and actor.kind is not ActorKind.USER:
            raise ForbiddenError(
                "a second person has to be signed in at the identity provider",
                hint="API keys and the local owner are nobody's second person. On a command line"
                " a person runs: kvrun login",
            )
        with self._changing() as change:
            query = select(ApprovalRow).where(ApprovalRow.id == approval_id).with_for_update()
            row = change.session.scalar(query) if is_id(approval_id) else None
            if row is None or row.workspace_id != workspace_id:
                raise NotFoundError("there is no such approval")
            if agreed and row.person_id == actor.person:
                raise ForbiddenError("whoever asked cannot be the second person")
            if row.agreed is not None or row.expires_at <= change.now:
                raise ConflictError("it is decided already, or too old", hint="Ask again.")
            row.agreed, row.decided_by, row.decided_at = agreed, actor.id, change.now
            row.reason = reason or None
            kind = AccessEventKind.APPROVAL_GIVEN if agreed else AccessEventKind.APPROVAL_REFUSED
            change.note(kind, actor, workspace_id, row.id, row.operation)
            return _approval(row)


def _has_second(session: Session, actor: Actor, workspace_id: str) -> bool:
    """Whether another member, who has signed in before, could agree."""
    others = _who_may_agree(workspace_id).where(MemberRow.user_id != (actor.person or ""))
    return session.scalar(others.limit(1)) is not None


def _may_agree(session: Session, workspace_id: str, user_id: str | None) -> bool:
    """Whether who agreed then may still do so now."""
    found = session.scalar(_who_may_agree(workspace_id).where(MemberRow.user_id == user_id))
    return found is not None


def _who_may_agree(workspace_id: str) -> Select[str]:
    roles = [role.value for role in Role if Permission.ERASE_WIDE in ROLE_PERMISSIONS[role]]
    return (
        select(MemberRow.user_id)
        .join(UserRow, UserRow.id == MemberRow.user_id)
        .where(
            MemberRow.workspace_id == workspace_id,
            MemberRow.role.in_(roles),
            UserRow.subject.is_not(None),
        )
    )


def _approval(row: ApprovalRow) -> Approval:
    return Approval(
        id=row.id,
        workspace_id=row.workspace_id,
        deployment_id=row.deployment_id,
        operation=row.operation,
        plan=row.plan,
        asked_by=row.asked_by,
        person_id=row.person_id,
        asked_at=row.asked_at,
        expires_at=row.expires_at,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        agreed=row.agreed,
        taken_at=row.taken_at,
        tenants=row.tenants,
        sessions=row.sessions,
        subject=row.subject or "",
        token=row.token or "",
        reason=row.reason or "",
    )
