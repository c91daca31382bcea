"""What each role may do and what each scope of an API key leaves of it. Pure tables."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from kvrun.accounts.actor import Actor, ActorKind, Role, Scope
from kvrun.accounts.errors import ForbiddenError, NotFoundError


class Permission(StrEnum):
    """One kind of thing to do in a workspace."""

    VIEW = "view"
    """See the workspace, its deployments and their numbers, without end users' ids."""
    DEPLOY = "deploy"
    """Make, start, stop and rebuild deployments."""
    KEYS = "keys"
    """Make API keys, and revoke one's own."""
    MEMBERS = "members"
    """Add and remove members, service accounts and their API keys; revoke everybody's."""
    SETTINGS = "settings"
    """Change the workspace's settings, tenants' labels and quotas."""
    ERASE = "erase"
    """Erase a session or a tenant."""
    ERASE_WIDE = "erase_wide"
    """Erase more than one tenant, and agree to it as the second person; with ``deploy``, delete a
    deployment."""
    WHOIS = "whois"
    """See end users' ids, and find out whom a pseudonym stands for."""
    CERTIFICATES = "certificates"
    """Read erasure certificates."""
    AUDIT_READ = "audit_read"
    """Read, verify and export the audit log."""
    EVIDENCE = "evidence"
    """Make and download evidence."""
    ALERTS = "alerts"
    """Acknowledge alerts."""
    OVERRIDE = "override"
    """Have a fine-tune served whose evaluation is missing or does not hold."""
    DELETE_WORKSPACE = "delete_workspace"
    """Delete the workspace."""


ROLE_PERMISSIONS: Mapping[Role, frozenset[Permission]] = MappingProxyType(
    {
        Role.OWNER: frozenset(Permission),
        Role.ADMIN: frozenset(Permission) - {Permission.DELETE_WORKSPACE, Permission.OVERRIDE},
        Role.DEVELOPER: frozenset(
            {Permission.VIEW, Permission.DEPLOY, Permission.KEYS, Permission.AUDIT_READ}
        ),
        Role.PRIVACY: frozenset(
            {
                Permission.VIEW,
                Permission.KEYS,
                Permission.ERASE,
                Permission.ERASE_WIDE,
                Permission.WHOIS,
                Permission.CERTIFICATES,
                Permission.AUDIT_READ,
            }
        ),
        Role.AUDITOR: frozenset(
            {
                Permission.VIEW,
                Permission.CERTIFICATES,
                Permission.AUDIT_READ,
                Permission.EVIDENCE,
            }
        ),
    }
)

SCOPE_PERMISSIONS: Mapping[Scope, frozenset[Permission]] = MappingProxyType(
    {
        Scope.INFER: frozenset(),
        Scope.ERASE: frozenset({Permission.VIEW, Permission.ERASE, Permission.CERTIFICATES}),
        Scope.AUDIT_READ: frozenset({Permission.VIEW, Permission.AUDIT_READ}),
        Scope.EVIDENCE: frozenset(
            {Permission.VIEW, Permission.EVIDENCE, Permission.CERTIFICATES, Permission.AUDIT_READ}
        ),
        Scope.ADMIN: frozenset(Permission),
    }
)
"""An API key may do what one of its scopes and its holder's role both allow. ``infer`` is for the
gateway alone: it opens nothing here."""

SCOPE_NEEDS: Mapping[Scope, Permission] = MappingProxyType(
    {
        Scope.INFER: Permission.DEPLOY,
        Scope.ERASE: Permission.ERASE,
        Scope.AUDIT_READ: Permission.AUDIT_READ,
        Scope.EVIDENCE: Permission.EVIDENCE,
        Scope.ADMIN: Permission.MEMBERS,
    }
)
"""What the holder's role must allow for a key to have, and keep, the scope."""

STRONGEST_FIRST = (Role.OWNER, Role.ADMIN, Role.PRIVACY, Role.DEVELOPER, Role.AUDITOR)
"""Which role counts where somebody's groups give several."""


def may(
    actor: Actor, permission: Permission, workspace_id: str, deployment_id: str | None = None
) -> bool:
    """Whether the actor may do this in the workspace, or to one deployment of it.

    The caller has looked up that the deployment belongs to the workspace. An API key of one
    deployment may do nothing that concerns the workspace as a whole.
    """
    role = actor.roles.get(workspace_id)
    if role is None or permission not in ROLE_PERMISSIONS[role]:
        return False
    if actor.deployment is not None and actor.deployment != deployment_id:
        return False
    if actor.scopes is None:
        return actor.kind in (ActorKind.USER, ActorKind.LOCAL_OWNER)
    return any(permission in SCOPE_PERMISSIONS[scope] for scope in actor.scopes)


def require(
    actor: Actor, permission: Permission, workspace_id: str, deployment_id: str | None = None
) -> None:
    """Refuse what the actor may not do.

    Raises NotFoundError where the actor has no business at all, so that ids cannot be guessed,
    and ForbiddenError where it is known and may not do this.
    """
    if may(actor, permission, workspace_id, deployment_id):
        return
    if not sees(actor, workspace_id, deployment_id):
        raise NotFoundError("there is no such workspace or deployment")
    raise ForbiddenError(
        f"this needs the permission {permission}", hint=f"It is given to {_who_may(permission)}."
    )


def allowed_scopes(role: Role) -> frozenset[Scope]:
    """The scopes that an API key of somebody with this role can have."""
    return frozenset(
        scope for scope, needed in SCOPE_NEEDS.items() if needed in ROLE_PERMISSIONS[role]
    )


def sees(actor: Actor, workspace_id: str, deployment_id: str | None = None) -> bool:
    """Whether the actor has any business there: a key for the gateway alone has none."""
    if workspace_id not in actor.roles:
        return False
    if actor.scopes is not None and not any(SCOPE_PERMISSIONS[scope] for scope in actor.scopes):
        return False
    return deployment_id is None or actor.deployment in (None, deployment_id)


def _who_may(permission: Permission) -> str:
    names = [role.value for role in Role if permission in ROLE_PERMISSIONS[role]]
    return f"the roles {', '.join(names)}, through API keys within their scopes"
