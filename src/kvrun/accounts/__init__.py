"""Accounts, workspaces, members, roles, API keys, sign-in and the second person."""

from kvrun.accounts.accounts import Accounts
from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.events import AccessEvent, AccessEventKind
from kvrun.accounts.part import SignInLimits
from kvrun.accounts.permissions import Permission, may, require
from kvrun.accounts.records import (
    Account,
    Approval,
    KeyRecord,
    Member,
    ServiceAccount,
    SignIn,
    Workspace,
)

__all__ = [
    "AccessEvent",
    "AccessEventKind",
    "Account",
    "Accounts",
    "Actor",
    "ActorKind",
    "Approval",
    "KeyRecord",
    "Member",
    "Permission",
    "Role",
    "Scope",
    "ServiceAccount",
    "SignIn",
    "SignInLimits",
    "Workspace",
    "may",
    "require",
]
