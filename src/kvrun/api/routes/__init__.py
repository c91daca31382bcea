"""The routes, a module a noun. Each says which permission it needs and calls one function."""

from kvrun.api.routes import (
    alerts,
    api_keys,
    audit,
    certificates,
    deployments,
    erasures,
    evidence,
    finetunes,
    insight,
    isolation,
    joint_erasures,
    lifecycle,
    members,
    policies,
    sign_in,
    storage,
    tenants,
    workspaces,
)

ROUTERS = (
    sign_in.router,
    workspaces.router,
    members.router,
    api_keys.router,
    deployments.router,
    lifecycle.router,
    insight.router,
    policies.router,
    erasures.router,
    joint_erasures.router,
    certificates.router,
    audit.router,
    storage.router,
    finetunes.router,
    isolation.router,
    evidence.router,
    alerts.router,
    tenants.router,
)
"""In the order in which the description lists them."""
