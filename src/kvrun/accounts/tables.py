"""The tables of people, workspaces and credentials. Times are seconds since 1970.

Credentials are kept as SHA-256 only. Rows of what was deleted stay, so that the access log and
certificates can be read with names; they hold no end user's id.
"""

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from kvrun.state.database import Base


class AccountRow(Base):
    """Who pays: the owner of workspaces."""

    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    deleted_at: Mapped[int | None] = mapped_column(BigInteger)


class WorkspaceRow(Base):
    """The boundary that owns deployments, Storage, members and keys.

    A name is never given twice: the Storage and logs of a deleted workspace stay under it.
    """

    __tablename__ = "workspaces"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), index=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[int] = mapped_column(BigInteger)
    closing_at: Mapped[int | None] = mapped_column(BigInteger)
    deleted_at: Mapped[int | None] = mapped_column(BigInteger)


class UserRow(Base):
    """A person. ``issuer`` and ``subject`` are unset until the first sign-in of who was invited.

    The local owner is a row too, with ``is_local_owner``.
    """

    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    issuer: Mapped[str | None] = mapped_column(String(512))
    subject: Mapped[str | None] = mapped_column(String(255))
    email: Mapped[str] = mapped_column(String(254), index=True)
    name: Mapped[str] = mapped_column(String(200))
    is_local_owner: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[int] = mapped_column(BigInteger)
    last_sign_in_at: Mapped[int | None] = mapped_column(BigInteger)


class MemberRow(Base):
    """A person's role in a workspace. ``from_group``: the identity provider gives and takes it."""

    __tablename__ = "members"

    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(String(16))
    from_group: Mapped[bool] = mapped_column(Boolean)
    added_by: Mapped[str] = mapped_column(String(32))
    added_at: Mapped[int] = mapped_column(BigInteger)


class ServiceAccountRow(Base):
    """A program's identity in one workspace."""

    __tablename__ = "service_accounts"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id"), index=True)
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    created_by: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[int] = mapped_column(BigInteger)
    deleted_at: Mapped[int | None] = mapped_column(BigInteger)


class ApiKeyRow(Base):
    """An API key. It is held by a person or by a service account, whose role bounds it.

    ``deployment_id`` limits it to one deployment; ``person_id`` is the user who made it;
    ``scopes`` are separated by spaces; ``login_sha256`` is the command line's login with which it,
    or the key that made it, was made.
    """

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "workspace_id", "name"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id"))
    deployment_id: Mapped[str | None] = mapped_column(String(128), index=True)
    name: Mapped[str] = mapped_column(String(128))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[str] = mapped_column(String(200))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"), index=True)
    service_account_id: Mapped[str | None] = mapped_column(
        ForeignKey("service_accounts.id"), index=True
    )
    person_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    last_used_at: Mapped[int | None] = mapped_column(BigInteger)
    login_sha256: Mapped[str | None] = mapped_column(String(64), index=True)


class SignInRow(Base):
    """A signed-in browser, or a command line's login, found by the hash of its token.

    ``browser_sha256`` of a login is the ``token_sha256`` of the browser that allowed it; that row
    may be gone already.
    """

    __tablename__ = "sign_ins"

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    method: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[int] = mapped_column(BigInteger)
    seen_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger, index=True)
    browser_sha256: Mapped[str | None] = mapped_column(String(64), index=True)


class UsedOwnerLinkRow(Base):
    """An owner link token that was used: it opens nothing again, whatever a backup brings back."""

    __tablename__ = "used_owner_links"

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    used_at: Mapped[int] = mapped_column(BigInteger)


class OidcFlowRow(Base):
    """A sign-in that is on its way through the identity provider; gone when it comes back.

    ``browser_sha256`` binds it to the browser that began it.
    """

    __tablename__ = "oidc_flows"

    browser_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    state_sha256: Mapped[str] = mapped_column(String(64))
    nonce: Mapped[str] = mapped_column(String(64))
    verifier: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[int] = mapped_column(BigInteger, index=True)


class LoginCodeRow(Base):
    """A code with which one command line gets its login; gone when it was shown once.

    ``challenge`` (PKCE, S256) binds it to the command line that asked. ``until`` is when the login
    ends at the latest, ``browser_sha256`` the sign-in that allowed it.
    """

    __tablename__ = "login_codes"

    code_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    challenge: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[int] = mapped_column(BigInteger)
    until: Mapped[int] = mapped_column(BigInteger)
    browser_sha256: Mapped[str] = mapped_column(String(64), index=True)


class ApprovalRow(Base):
    """A request for a second person's word. ``plan`` is the token of the plan that it is for, or
    its digest where the token is longer; then ``token`` has it."""

    __tablename__ = "approvals"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id"), index=True)
    deployment_id: Mapped[str | None] = mapped_column(String(128))
    operation: Mapped[str] = mapped_column(String(64))
    plan: Mapped[str] = mapped_column(String(200))
    asked_by: Mapped[str] = mapped_column(String(32))
    person_id: Mapped[str] = mapped_column(String(32))
    asked_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger)
    decided_by: Mapped[str | None] = mapped_column(String(32))
    decided_at: Mapped[int | None] = mapped_column(BigInteger)
    agreed: Mapped[bool | None] = mapped_column(Boolean)
    taken_at: Mapped[int | None] = mapped_column(BigInteger)
    tenants: Mapped[int | None] = mapped_column(BigInteger)
    sessions: Mapped[int | None] = mapped_column(BigInteger)
    subject: Mapped[str | None] = mapped_column(String(320))
    token: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str | None] = mapped_column(String(500))
