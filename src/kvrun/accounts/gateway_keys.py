"""Which API keys a deployment's gateway has to know. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvrun.accounts.actor import Role, Scope
from kvrun.accounts.permissions import allowed_scopes
from kvrun.accounts.records import KeyRecord
from kvrun.gateway.apikeys import SCOPE_ERASE, SCOPE_INFERENCE, ApiKeyRecord

GATEWAY_SCOPES = {Scope.INFER: SCOPE_INFERENCE, Scope.ERASE: SCOPE_ERASE}
"""The scopes that the gateway knows, by those of the control plane."""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """An API key, the hex SHA-256 of its secret, and its holder's role now (None: none)."""

    key: KeyRecord
    sha256: str
    role: Role | None


def gateway_records(
    keys: Iterable[HeldKey], workspace_id: str, deployment_id: str, now: float
) -> list[ApiKeyRecord]:
    """The records of the deployment's ``api_keys.json``, by id.

    A key is there while it is neither revoked nor expired, belongs to the deployment or to the
    whole workspace, and has a scope for the gateway that its holder's role still allows. ``now``
    in seconds since 1970.
    """
    records = []
    for held in keys:
        key = held.key
        if held.role is None or key.revoked_at is not None or key.workspace_id != workspace_id:
            continue
        if key.deployment_id not in (None, deployment_id):
            continue
        if key.expires_at is not None and key.expires_at <= now:
            continue
        scopes = key.scopes & allowed_scopes(held.role) & GATEWAY_SCOPES.keys()
        if scopes:
            records.append(
                ApiKeyRecord(
                    id=key.id,
                    sha256=held.sha256,
                    scopes=tuple(sorted(GATEWAY_SCOPES[scope] for scope in scopes)),
                    expires_at=key.expires_at,
                )
            )
    return sorted(records, key=lambda record: record.id)
