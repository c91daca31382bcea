"""Workspaces, members, service accounts, API keys, logins and approvals."""

from collections.abc import Sequence

from kvrun.client.call import LONG_S, Call, Listing, given, listing, path, query
from kvrun.client.results.people import (
    ApiKey,
    Approval,
    Login,
    Me,
    Member,
    NewApiKey,
    NewLogin,
    ServiceAccount,
    Workspace,
)


def me() -> Call[Me]:
    """Who the API key speaks for, with which roles and scopes."""
    return Call("GET", "/me", Me)


def list_workspaces() -> Listing[Workspace]:
    """The workspaces in which the caller has a role."""
    return listing("/workspaces", Workspace)


def create_workspace(name: str) -> Call[Workspace]:
    """Make a workspace. Its name never changes."""
    return Call("POST", "/workspaces", Workspace, body={"name": name})


def get_workspace(workspace_id: str) -> Call[Workspace]:
    """One workspace, and what the caller may do in it."""
    return Call("GET", path("workspaces", workspace_id), Workspace)


def delete_workspace(workspace_id: str) -> Call[Workspace]:
    """Delete a workspace whose deployments were deleted. Raises ConflictError for what is left."""
    return Call("DELETE", path("workspaces", workspace_id), Workspace, timeout_s=LONG_S)


def list_members(workspace_id: str) -> Listing[Member]:
    """Everybody with a role in the workspace."""
    return listing(path("workspaces", workspace_id, "members"), Member)


def add_member(workspace_id: str, email: str, role: str) -> Call[Member]:
    """Let somebody in: from their first sign-in with that address on."""
    body = {"email": email, "role": role}
    return Call("POST", path("workspaces", workspace_id, "members"), Member, body=body)


def set_member_role(workspace_id: str, user_id: str, role: str) -> Call[Member]:
    """Give a member another role."""
    place = path("workspaces", workspace_id, "members", user_id)
    return Call("PATCH", place, Member, body={"role": role}, repeatable=True)


def remove_member(workspace_id: str, user_id: str) -> Call[None]:
    """Remove a member; their API keys of the workspace are revoked."""
    return Call("DELETE", path("workspaces", workspace_id, "members", user_id), None)


def list_service_accounts(workspace_id: str) -> Listing[ServiceAccount]:
    """The service accounts of a workspace, deleted ones included."""
    return listing(path("workspaces", workspace_id, "service-accounts"), ServiceAccount)


def create_service_account(workspace_id: str, name: str, role: str) -> Call[ServiceAccount]:
    """Make a program's identity; it acts through API keys that are made for it."""
    place = path("workspaces", workspace_id, "service-accounts")
    return Call("POST", place, ServiceAccount, body={"name": name, "role": role})


def delete_service_account(workspace_id: str, account_id: str) -> Call[None]:
    """Delete a service account; its API keys end at once."""
    return Call("DELETE", path("workspaces", workspace_id, "service-accounts", account_id), None)


def list_api_keys(workspace_id: str, *, inactive: bool = True) -> Listing[ApiKey]:
    """The API keys of a workspace, without their secrets; ``inactive``: ended ones too."""
    return listing(path("workspaces", workspace_id, "api-keys"), ApiKey, inactive=inactive)


def create_api_key(
    workspace_id: str,
    name: str,
    scopes: Sequence[str],
    *,
    deployment_id: str | None = None,
    expires_at: int | None = None,
    service_account_id: str | None = None,
) -> Call[NewApiKey]:
    """Make an API key. Its secret is in this answer and nowhere else.

    Scopes are ``infer``, ``erase``, ``audit.read``, ``evidence`` and ``admin``; ``expires_at`` is
    in seconds since 1970.
    """
    body = given(
        name=name,
        scopes=list(scopes),
        deployment_id=deployment_id,
        expires_at=expires_at,
        service_account_id=service_account_id,
    )
    return Call("POST", path("workspaces", workspace_id, "api-keys"), NewApiKey, body=body)


def rotate_api_key(
    workspace_id: str, key_id: str, *, overlap_s: int | None = None
) -> Call[NewApiKey]:
    """Make a successor of a key; the old one goes on for ``overlap_s`` seconds (usual: 7 days)."""
    place = path("workspaces", workspace_id, "api-keys", key_id, "rotate")
    return Call("POST", place, NewApiKey, body=given(overlap_s=overlap_s))


def revoke_api_key(workspace_id: str, key_id: str) -> Call[ApiKey]:
    """End an API key now."""
    place = path("workspaces", workspace_id, "api-keys", key_id)
    return Call("DELETE", place, ApiKey, repeatable=True)


def finish_login(code: str, verifier: str) -> Call[NewLogin]:
    """Log a command line in with the code of the console's page; see ``kvrun.client.login``."""
    return Call("POST", "/logins", NewLogin, body={"code": code, "verifier": verifier})


def list_logins() -> Listing[Login]:
    """The command lines on which the person is logged in, the latest first."""
    return listing("/logins", Login)


def end_login(login_id: str) -> Call[None]:
    """End one of one's own logins at once."""
    return Call("DELETE", path("logins", login_id), None)


def sign_out(*, everywhere: bool = False) -> Call[None]:
    """End this login; ``everywhere``: the person's browsers and other command lines too."""
    return Call("POST", "/sign-out", None, query=query(everywhere=everywhere))


def ask_approval(workspace_id: str, deployment_id: str, token: str) -> Call[Approval]:
    """Ask a second person to agree to the erasure of a deployment, by its plan's token."""
    body = {"deployment_id": deployment_id, "token": token}
    return Call("POST", path("workspaces", workspace_id, "approvals"), Approval, body=body)


def list_approvals(workspace_id: str) -> Listing[Approval]:
    """Requests for a second person's word, the newest first."""
    return listing(path("workspaces", workspace_id, "approvals"), Approval)


def approve(workspace_id: str, approval_id: str) -> Call[Approval]:
    """Agree as the second person: for people who logged in and did not ask."""
    return Call(
        "POST", path("workspaces", workspace_id, "approvals", approval_id, "approve"), Approval
    )


def refuse_approval(workspace_id: str, approval_id: str, *, reason: str = "") -> Call[Approval]:
    """Refuse as the second person, or take one's own request back; ``reason``: why, in a line."""
    place = path("workspaces", workspace_id, "approvals", approval_id, "refuse")
    return Call("POST", place, Approval, body={"reason": reason})
