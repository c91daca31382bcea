"""What is told about people: sign-ins, roles, keys, approvals. It goes to the access log."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvrun.accounts.actor import ActorKind


class AccessEventKind(StrEnum):
    """What happened."""

    SIGNED_IN = "signed_in"
    SIGN_IN_FAILED = "sign_in_failed"
    SIGNED_OUT = "signed_out"
    OWNER_LINK_USED = "owner_link_used"
    WORKSPACE_CREATED = "workspace_created"
    WORKSPACE_CLOSED = "workspace_closed"
    WORKSPACE_DELETED = "workspace_deleted"
    ACCOUNT_CREATED = "account_created"
    MEMBER_ADDED = "member_added"
    MEMBER_REMOVED = "member_removed"
    ROLE_CHANGED = "role_changed"
    SERVICE_ACCOUNT_CREATED = "service_account_created"
    SERVICE_ACCOUNT_DELETED = "service_account_deleted"
    API_KEY_CREATED = "api_key_created"
    API_KEY_REVOKED = "api_key_revoked"
    APPROVAL_ASKED = "approval_asked"
    APPROVAL_GIVEN = "approval_given"
    APPROVAL_REFUSED = "approval_refused"
    APPROVAL_TAKEN = "approval_taken"
    APPROVAL_GIVEN_BACK = "approval_given_back"


@dataclass(frozen=True, slots=True)
class AccessEvent:
    """One event. It names people by id only.

    ``at`` is in seconds since 1970. ``actor_id`` is empty where nobody is known yet. ``subject``
    is the id of whom or what it is about; ``detail`` a few words that no person chose, such as
    ``developer -> admin``. ``alert`` says that somebody has to look at it.
    """

    kind: AccessEventKind
    at: int
    actor_id: str = ""
    actor_kind: ActorKind | None = None
    workspace_id: str | None = None
    subject: str = ""
    detail: str = ""
    alert: bool = False


OnEvent = Callable[[AccessEvent], None]


def ignore(_event: AccessEvent) -> None:
    """Where nobody listens."""
