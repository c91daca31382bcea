"""Workspaces, their members, and keys. Times are seconds since 1970."""

import msgspec


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who the API key speaks for. ``roles`` by workspace id; ``deployment_id`` limits the key."""

    id: str
    name: str
    kind: str
    roles: dict[str, str]
    scopes: list[str] | None = None
    deployment_id: str | None = None
    csrf_token: str | None = None


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace, the caller's ``role`` in it, and the ``permissions`` that go with it."""

    id: str
    account_id: str
    name: str
    created_at: int
    closing_at: int | None = None
    deleted_at: int | None = None
    role: str | None = None
    permissions: list[str] = []


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person in a workspace. ``from_group``: the identity provider gives and takes the role."""

    user_id: str
    email: str
    name: str
    role: str
    from_group: bool
    added_at: int
    last_sign_in_at: int | None
    signed_in: bool


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A program's identity in a workspace; it acts through API keys."""

    id: str
    workspace_id: str
    name: str
    role: str
    created_at: int
    deleted_at: int | None = None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. It is held by a person or by a service account."""

    id: str
    workspace_id: str
    deployment_id: str | None
    name: str
    scopes: list[str]
    user_id: str | None
    service_account_id: str | None
    person_id: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    active: bool


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key and its ``secret``, which is shown this once."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewApiKey(key={self.key!r}, secret=...)"


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A command line on which one is logged in; ``id`` opens nothing."""

    id: str
    created_at: int
    seen_at: int
    expires_at: int


class NewLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login and its ``token``, which takes the place of an API key until it ends."""

    token: str
    user_id: str
    name: str
    expires_at: int

    def __repr__(self) -> str:
        return f"NewLogin(user_id={self.user_id!r}, expires_at={self.expires_at}, token=...)"


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a second person's word; ``agreed`` is None until somebody decided."""

    id: str
    workspace_id: str
    deployment_id: str | None
    operation: str
    asked_by: str
    asked_at: int
    expires_at: int
    decided_by: str | None
    decided_at: int | None
    agreed: bool | None
    taken_at: int | None
    tenants: int | None = None
    sessions: int | None = None
    subject: str = ""
    reason: str = ""
