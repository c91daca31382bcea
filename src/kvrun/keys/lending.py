"""Lending a session's keys to another process: into a buffer of locked memory, and nowhere else."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvrun.keys.records import KEY_BYTES, check_name
from kvrun.keys.ring_entries import SessionEntry
from kvrun.keys.service import KeyService


@dataclass(frozen=True, slots=True)
class LentKeys:
    """What goes beside the keys. Times are seconds since 1970."""

    key_id: bytes
    generation: int
    created_at: float
    used_at: float
    tenant_ref: str


class KeyLender:
    """Lends from one key service. Thread-safe, like it."""

    def __init__(self, service: KeyService) -> None:
        self._service = service
        self._lent: dict[bytes, SessionEntry] = {}

    def lend(
        self,
        tenant: str,
        session: str,
        out: memoryview,
        *,
        create: bool,
        note: Callable[[bytes], None],
    ) -> LentKeys | None:
        """Put DEK, salt seed and name key into ``out`` (96 bytes); None where there are none.

        ``note(key_id)`` writes down who has it before any destruction of it can begin. With
        ``create`` it counts as a use. Raises as ``KeyService.acquire``.
        """
        check_name(tenant, "tenant")
        check_name(session, "session")
        service = self._service
        if create:
            service.settle(tenant, session)
        elif service.is_doomed(tenant, session):
            return None
        with service.ring() as ring:
            entry = service.entry(tenant, session, create=create)
            if entry is None:
                return None
            with ring.opened(entry) as opened:
                for number, key in enumerate((opened.dek, opened.salt_seed, opened.name_key)):
                    out[number * KEY_BYTES : (number + 1) * KEY_BYTES] = key
                ref = opened.tenant_ref
            self._lent[entry.key_id] = entry
            note(entry.key_id)
            return LentKeys(entry.key_id, entry.generation, entry.created, entry.used, ref)

    def used(self, uses: Iterable[tuple[bytes, float]], now: float) -> None:
        """Note last uses (seconds since 1970); none lies in the future."""
        for key_id, at in uses:
            entry = self._lent.get(key_id)
            if entry is not None:
                entry.used = max(entry.used, min(at, now))

    def forget(self, key_ids: Iterable[bytes]) -> None:
        """These keys are gone."""
        for key_id in key_ids:
            self._lent.pop(key_id, None)

    def adopt(
        self, key_ids: Iterable[bytes], *, within_s: float | None = None
    ) -> list[bytes] | None:
        """Note keys that a daemon has from before; those of them that exist no more.

        None where keys are being destroyed for longer than ``within_s``, and nobody could look.
        """
        found = list(key_ids)
        if not found:
            return []
        living = self._service.living(found, within_s=within_s)
        if living is None:
            return None
        self._lent.update(living)
        return [key_id for key_id in found if key_id not in living]
