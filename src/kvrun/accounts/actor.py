"""Who is asking, and as what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a person or a service account is in one workspace."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    PRIVACY = "privacy"
    AUDITOR = "auditor"


class Scope(StrEnum):
    """What an API key is for; it never allows more than its holder's role."""

    INFER = "infer"
    ERASE = "erase"
    AUDIT_READ = "audit.read"
    EVIDENCE = "evidence"
    ADMIN = "admin"


class ActorKind(StrEnum):
    """How somebody came in."""

    USER = "user"
    """A person, signed in at the identity provider."""
    SERVICE = "service"
    """A service account; it acts through API keys only, with their scopes."""
    API_KEY = "api_key"
    """A person's API key."""
    LOCAL_OWNER = "local_owner"
    """Whoever could read the owner link token: for the first start and for emergencies."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who authenticated.

    ``id`` is the user's, the service account's or the key's id. ``roles`` maps workspace ids to
    roles, as they are now. ``scopes`` is None for people who signed in. ``deployment`` limits an
    API key to one deployment. ``person`` is the user who answers for it: the user, or who made
    the API key. ``key_expires_at`` is when an API key ends, ``login_expires_at`` when a person's
    login on a command line does (seconds since 1970; None for a browser). ``login_sha256`` is the
    hash of that login's token, or of the one with which the API key was made.
    """

    id: str
    name: str
    kind: ActorKind
    roles: Mapping[str, Role] = field(default_factory=dict)
    scopes: frozenset[Scope] | None = None
    deployment: str | None = None
    person: str | None = None
    key_expires_at: int | None = None
    login_expires_at: int | None = None
    login_sha256: str | None = None

    @property
    def reference(self) -> str:
        """How records name it: by kind and id, never by name."""
        return f"{self.kind} {self.id}"
