"""Making room for one more session: its tenant and its deployment may have only so many."""

from collections.abc import Callable, Iterable

from kvrun.keys.errors import SessionLimitError
from kvrun.keys.keyring import Keyring
from kvrun.keys.limits import KeyLimits
from kvrun.keys.ring_entries import SessionEntry


def make_room(
    ring: Keyring,
    limits: KeyLimits,
    tenant: str,
    drop_expired: Callable[[Iterable[SessionEntry]], None],
) -> None:
    """Have expired sessions dropped where a limit is reached. Raises SessionLimitError."""
    owner = ring.find_tenant(tenant)
    per_tenant, total = limits.max_sessions_per_tenant, limits.max_sessions
    if owner is not None and per_tenant is not None and len(owner.sessions) >= per_tenant:
        drop_expired(owner.sessions.values())
        if len(owner.sessions) >= per_tenant:
            raise SessionLimitError(
                f"The tenant has {len(owner.sessions)} sessions; {per_tenant} are allowed",
                hint="Erase sessions, or wait until idle ones expire.",
            )
    if total is not None and ring.session_count >= total:
        drop_expired(ring.sessions())
        if ring.session_count >= total:
            raise SessionLimitError(
                f"The deployment has {total} sessions and no more are allowed",
                hint="Erase sessions, or wait until idle ones expire.",
            )
