"""What an erasure would reach in a running instance, and the token that confirms it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import (
    TOKEN_LIFETIME_S,
    ErasureScope,
    Plan,
    TierCount,
    add_tiers,
    check_token,
    make_token,
    needs_token,
)
from kvrun.instance.instance import Instance
from kvrun.keys.selection import SelectedKey
from kvrun.keys.source import KeySelecting


@dataclass(frozen=True, slots=True)
class ErasurePlans:
    """Counts scopes. ``token_key`` (32 bytes) is for tokens, ``now`` in seconds since 1970."""

    instance: Instance
    keys: KeySelecting
    token_key: bytes
    now: Callable[[], float]

    def plan(self, scope: ErasureScope) -> Plan:
        """What an erasure of the scope would reach now, with the token to confirm it."""
        found, tiers = self._select(scope), []
        for key in found:
            if key.session_ref:
                cache = self.instance.cache
                held = cache.measure(key.tenant_ref, key.session_ref, ask=True)
                counts = [("memory", *held[:2]), ("disk", *held[2:4])]
                if cache.has_objects:
                    counts.append(("object", *held[4:]))
                tiers += [TierCount(tier=tier, blocks=n, bytes=size) for tier, n, size in counts]
        tenants, sessions = _counted(found)
        token = ""
        if needs_token(scope):
            token = make_token(
                self.token_key, scope, tenants=tenants, sessions=sessions, now=self.now()
            )
        return Plan(
            kind=scope.kind,
            workspace=self.instance.workspace,
            deployment=self.instance.deployment,
            tenants=tenants,
            sessions=sessions,
            requests=sum(
                scope.covers(handle.keys.scope.tenant, handle.keys.scope.session)
                for handle in self.instance.handles
                if handle.finished_at is None
            ),
            tiers=add_tiers(tiers),
            claim_class=self.instance.keys.claim.value,
            token=token,
        )

    def check(
        self, scope: ErasureScope, token: str, *, lifetime_s: float = TOKEN_LIFETIME_S
    ) -> None:
        """Refuse a scope that wants a token without a good one. Raises ConfirmationError."""
        if needs_token(scope):
            tenants, sessions = _counted(self._select(scope))
            check_token(
                self.token_key,
                token,
                scope,
                tenants=tenants,
                sessions=sessions,
                now=self.now(),
                lifetime_s=lifetime_s,
            )

    def resolved(self, scope: ErasureScope) -> ErasureScope:
        """With the ids of the tenants that a scope names by reference."""
        if scope.kind is not RequestKind.TENANTS:
            return scope
        return replace(scope, tenants=self.keys.ids_of(scope.refs))

    def _select(self, scope: ErasureScope) -> tuple[SelectedKey, ...]:
        return self.keys.select(scope.ids, scope.session or None).keys


def _counted(found: tuple[SelectedKey, ...]) -> tuple[int, int]:
    """Tenants and sessions among keys."""
    return len({key.tenant_ref for key in found}), sum(1 for key in found if key.generation)
