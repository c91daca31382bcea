"""What is known of accounts, people and credentials, as values. Times are seconds since 1970."""

from dataclasses import dataclass, field

from kvrun.accounts.actor import Role, Scope


@dataclass(frozen=True, slots=True)
class Workspace:
    """The boundary that owns deployments, Storage, members and keys.

    While ``closing_at`` is set nothing new is made in it; once ``deleted_at`` is, it can be read.
    """

    id: str
    account_id: str
    name: str
    created_at: int
    closing_at: int | None = None
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A person in a workspace. ``signed_in`` is False for who was invited and never came."""

    user_id: str
    email: str
    name: str
    role: Role
    from_group: bool
    added_at: int
    last_sign_in_at: int | None
    signed_in: bool


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A program's identity in a workspace."""

    id: str
    workspace_id: str
    name: str
    role: Role
    created_at: int
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key without its secret.

    ``deployment_id`` limits it to one deployment. It is held by the person ``user_id`` or by
    ``service_account_id``; ``person_id`` made it. ``active``: neither revoked nor expired, and its
    holder still has a role.
    """

    id: str
    workspace_id: str
    deployment_id: str | None
    name: str
    scopes: frozenset[Scope]
    user_id: str | None
    service_account_id: str | None
    person_id: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    active: bool


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that was just opened. ``token`` is the cookie's value, or what a command line
    sends, known to nobody else."""

    token: str
    csrf_token: str
    user_id: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Login:
    """A command line on which a person is logged in. ``id`` opens nothing."""

    id: str
    created_at: int
    seen_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for a second person's word on one operation with one plan.

    ``agreed`` is None until somebody decided. It can be used once, before ``expires_at``.
    ``tenants`` and ``sessions`` are what the plan would reach when it was asked for; ``subject`` is
    the label that it is about, if it is about one. ``token`` is the plan's where ``plan`` is only
    its digest. ``reason`` is why it was refused, where somebody said so.
    """

    id: str
    workspace_id: str
    deployment_id: str | None
    operation: str
    plan: str
    asked_by: str
    person_id: str
    asked_at: int
    expires_at: int
    decided_by: str | None
    decided_at: int | None
    agreed: bool | None
    taken_at: int | None
    tenants: int | None = None
    sessions: int | None = None
    subject: str = ""
    token: str = field(default="", repr=False)
    reason: str = ""

    def usable(self, person_id: str | None, now: float) -> bool:
        """Whether that person can erase with it now (seconds since 1970)."""
        mine = self.person_id == person_id
        return bool(self.agreed) and mine and self.taken_at is None and self.expires_at > now
