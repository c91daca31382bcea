"""Accounts, workspaces, members, roles, API keys, sign-in and the second person."""

from kvrun.accounts.accounts import Accounts
from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.events import AccessEvent, AccessEventKind
from kvrun.accounts.oidc import OidcClient, OidcIdentity, OidcSettings
from kvrun.accounts.oidc_sign_ins import OidcStart
from kvrun.accounts.owner_link import write_owner_link
from kvrun.accounts.part import SignInLimits
from kvrun.accounts.permissions import Permission, may, require
from kvrun.accounts.records import (
    Approval,
    KeyRecord,
    Login,
    Member,
    ServiceAccount,
    SignIn,
    Workspace,
)

__all__ = [
    "AccessEvent",
    "AccessEventKind",
    "Accounts",
    "Actor",
    "ActorKind",
    "Approval",
    "KeyRecord",
    "Login",
    "Member",
    "OidcClient",
    "OidcIdentity",
    "OidcSettings",
    "OidcStart",
    "Permission",
    "Role",
    "Scope",
    "ServiceAccount",
    "SignIn",
    "SignInLimits",
    "Workspace",
    "may",
    "require",
    "write_owner_link",
]
