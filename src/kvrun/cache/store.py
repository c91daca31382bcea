"""The cache store: which sessions exist, and the life of the tiers.

A store without a disk and an object tier (a stateless deployment) writes nothing anywhere.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kvrun.cache.disk import DiskTier
from kvrun.cache.errors import SessionDroppedError
from kvrun.cache.events import CacheEvent, Tier
from kvrun.cache.fetching import Fetcher
from kvrun.cache.foldertree import checked_ref
from kvrun.cache.foreign import ForeignBlocks
from kvrun.cache.handles import DropReport, HeldByTier, Reservation
from kvrun.cache.leaving import beyond_in_storage, leave, leave_unopened, trim
from kvrun.cache.levels import CacheLevels, CacheStats, levels_of, stats_of, top_tenants_of
from kvrun.cache.memory import MemoryTier, TenantUsage
from kvrun.cache.object_tier import ObjectTier
from kvrun.cache.pins import KeptPrefix
from kvrun.cache.placement import OPEN_GATE, Basis, Gate
from kvrun.cache.retention import expire_blocks, keep_prefix
from kvrun.cache.served import ServedModels
from kvrun.cache.session import CacheSession
from kvrun.cache.sessionpacks import PackKeys
from kvrun.cache.state import BlockOwner, CacheCounters, CacheState
from kvrun.errors import KvrunError

__all__ = [
    "CacheLevels",
    "CacheSession",
    "CacheStats",
    "CacheStore",
    "DropReport",
    "Reservation",
    "Tier",
]

_TOMBSTONES = 65_536


class CacheStore:
    """Every session's sealed blocks on one box.

    ``on_event`` gets aggregated events, never with a lock held, from any thread. Before blocks are
    written to disk ``gate`` is asked. Blocks older than ``ttl_s``, or what the gate says if that is
    shorter, go with :meth:`expire`; ``served`` remembers for it which models were served when,
    and ``alone`` says that no other daemon has packs in the same place.
    Committed blocks go to disk once none was committed for ``write_delay_s``
    (:mod:`kvrun.cache.writebehind`); at most ``queue_bytes`` (and half of the slab) wait for it.
    With ``background`` off nothing is written until :meth:`work` or :meth:`flush`.
    """

    def __init__(
        self,
        *,
        memory: MemoryTier[BlockOwner],
        disk: DiskTier | None,
        objects: ObjectTier | None = None,
        on_event: Callable[[CacheEvent], None],
        gate: Gate = OPEN_GATE,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ttl_s: float | None = None,
        served: ServedModels | None = None,
        alone: bool = True,
        write_delay_s: float = 2.0,
        queue_bytes: int = 2**30,
        background: bool = True,
    ) -> None:
        self._state = CacheState(
            memory=memory,
            disk=disk,
            objects=objects,
            on_event=on_event,
            gate=gate,
            now=now,
            wall=wall,
            ttl_s=ttl_s,
            write_delay_s=write_delay_s,
            queue_bytes=queue_bytes,
        )
        self._foreign = ForeignBlocks(
            self._state, served or ServedModels(), background=background, alone=alone
        )
        self._table_lock = threading.Lock()
        self._sessions: dict[tuple[str, str], CacheSession] = {}
        self._tombstones: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._fetcher = None
        if objects is not None:
            self._fetcher = Fetcher(objects, self._state.lock, now=now)
            self._state.on_objects_back = self._offer_unpacked
        if background and self._state.writer is not None:
            self._state.writer.start()
        if background and self._state.packer is not None:
            self._state.packer.start()

    def carve(self, cell_bytes: int, *, timeout_s: float = 10.0) -> bool:
        """Sets the cell size that the engine needs; the same size keeps the content (True).

        Another size persists what waits, then empties the memory tier (False). Raises
        CacheBusyError while requests still hold blocks.
        """
        state = self._state
        if cell_bytes != state.memory.cell_bytes:
            self.flush(timeout_s)
        with self._table_lock:
            sessions = list(self._sessions.values())
        if cell_bytes != state.memory.cell_bytes:
            for session in sessions:
                session.release()
        with state.lock:
            changes = cell_bytes != state.memory.cell_bytes
            held = [session.in_memory_locked() for session in sessions if changes]
            kept = state.memory.carve(cell_bytes)
            if not kept:
                for session, (blocks, size) in zip(sessions, held, strict=True):
                    session.forget_all_cells_locked(blocks, size)
        return kept

    @property
    def has_objects(self) -> bool:
        """Whether there is an object tier."""
        return self._state.objects is not None

    def session(
        self, tenant_ref: str, session_ref: str, *, epoch: int, packs: PackKeys | None = None
    ) -> CacheSession:
        """The session's blocks, listed from disk on first use (which may take a while).

        With ``packs`` its packs in Storage are looked for in the background; at first use that is
        waited for, for a moment. The same ``epoch`` (the key's generation) gives the same object; a
        higher one drops what the lower one stored. Raises SessionDroppedError when that epoch was
        dropped or replaced.
        """
        session = self._entry(tenant_ref, session_ref, epoch)
        session.open()
        if packs is not None:
            session.use_packs(packs, wait=True)
        return session

    def prepare(self, tenant_ref: str, session_ref: str, *, epoch: int, packs: PackKeys) -> None:
        """Begins to look for a session's packs: a request of it may come soon."""
        if self.has_objects:
            self._entry(tenant_ref, session_ref, epoch).use_packs(packs, wait=False)

    def measure(self, tenant_ref: str, session_ref: str, *, ask: bool = False) -> HeldByTier:
        """What a session has by tier, opened or not.

        Packs of sessions that were not opened are counted only with ``ask``: Storage is asked then,
        and counts as empty where it does not answer.
        """
        state = self._state
        with self._table_lock:
            session = self._sessions.get((tenant_ref, session_ref))
        if session is not None:
            held = session.measure()
            known = session.packs is not None and session.packs.loaded
        else:
            on_disk = state.disk.folder.held(tenant_ref, session_ref) if state.disk else (0, 0)
            held, known = HeldByTier(0, 0, *on_disk), False
        if not ask or known or state.objects is None:
            return held
        try:
            packs = state.objects.packs(tenant_ref, session_ref)
        except KvrunError:
            return held
        return held._replace(
            object_blocks=sum(pack.blocks for pack in packs),
            object_bytes=sum(pack.size_bytes for pack in packs),
        )

    def session_refs(self, tenant_refs: Collection[str] | None = None) -> list[tuple[str, str]]:
        """Every (tenant_ref, session_ref) with blocks on some tier, opened or not; of some tenants
        only, where they are named. Storage counts as empty where it does not answer."""
        state = self._state
        with self._table_lock:
            found = set(self._sessions)
        if state.disk is not None:
            found.update(state.disk.session_refs())
        if state.objects is not None:
            for tenant_ref in [""] if tenant_refs is None else tenant_refs:
                found.update(state.objects.session_refs(tenant_ref))
        return sorted(ref for ref in found if tenant_refs is None or ref[0] in tenant_refs)

    def drop(self, tenant_ref: str, session_ref: str, *, epoch: int | None = None) -> DropReport:
        """Removes a session from every tier, also one that nobody opened since start.

        ``epoch`` and all lower ones are refused from then on; without it the live session's.
        """
        with self._table_lock:
            current = self._sessions.get((tenant_ref, session_ref))
        if epoch is None:
            epoch = current.epoch if current is not None else 0
        if current is None or current.epoch < epoch:
            try:
                current = self._entry(tenant_ref, session_ref, epoch)
            except SessionDroppedError:
                return DropReport()
        elif current.epoch > epoch:
            return DropReport()
        return current.drop()

    def leave(
        self,
        tenant_ref: str,
        session_ref: str,
        why: Mapping[Tier, Basis],
        pause: Callable[[], None] = lambda: None,
    ) -> dict[Tier, tuple[int, int]]:
        """Takes a session's blocks out of the tiers that ``why`` names; blocks that left and their
        sealed bytes, by tier.

        The session itself lives on: what it may have elsewhere stays, and it may store again.
        ``pause`` is called every few blocks, with no lock held.
        """
        key = (tenant_ref, session_ref)
        with self._table_lock:
            session = self._sessions.get(key)
        if session is not None:
            left = leave(session, why, pause)
        else:
            left = leave_unopened(self._state, key, why, pause)
        self._state.deliver()
        return left

    def remove_outgoing(self, pause: Callable[[], None] = lambda: None) -> None:
        """Removes files of what left the disk where that was cut short; not while others leave."""
        if self._state.disk is not None:
            self._state.disk.remove_outgoing(pause)
            self._state.deliver()

    def trim(
        self,
        tenant_ref: str,
        tier: Tier,
        basis: Basis,
        pause: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Takes what a tenant holds in a tier beyond what it may; blocks and sealed bytes.

        Its oldest blocks leave memory and disk, whole sessions leave Storage. ``pause`` is called
        every few blocks, with no lock held.
        """
        left = trim(self._state, tenant_ref, tier, basis, pause)
        self._state.deliver()
        objects = self._state.objects
        if tier is not Tier.OBJECT or objects is None:
            return left
        blocks = size = 0
        for key in objects.session_refs(tenant_ref):
            if not beyond_in_storage(objects, tenant_ref):
                break
            left = self.leave(*key, {tier: basis}, pause)[tier]
            blocks, size = blocks + left[0], size + left[1]
        return blocks, size

    def work(self) -> int:
        """Writes one batch of due blocks and delivers events; returns how many blocks it took."""
        count = self._state.writer.run_due() if self._state.writer is not None else 0
        if self._state.packer is not None:
            count += self._state.packer.run_due()
        self._state.deliver()
        return count

    def keep(self, session: CacheSession) -> KeptPrefix:
        """Keeps a session's prefix as it is now, as far as its tenant may keep blocks.

        That is the tenant's quota of the memory tier for all its sessions together, or a quarter
        of the tier where there is none.
        """
        with self._table_lock:
            sessions = list(self._sessions.values())
        return keep_prefix(self._state.memory, session, sessions)

    def serve(self, fingerprint: bytes) -> None:
        """An engine with this fingerprint is connected: blocks of others are of no use."""
        self._foreign.serve(fingerprint)

    def expire(self) -> int:
        """Removes what was kept long enough, also of sessions nobody opened; how many copies. What
        other models left goes a day after they served last. The daemon calls it every minute or so.
        """
        with self._table_lock:
            sessions = dict(self._sessions)
        count = expire_blocks(self._state, sessions.values())
        self._foreign.collect(sessions)
        self._state.deliver()
        return count

    def deliver_events(self) -> None:
        """Hands gathered events to ``on_event``; the daemon calls it every second or so."""
        self._state.deliver()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Writes everything that waits for disk or Storage; False when time ran out."""
        done = self._state.writer.flush(timeout_s) if self._state.writer is not None else True
        if self._state.packer is not None:
            done = self._state.packer.flush(timeout_s) and done
        self._state.deliver()
        return done

    def close(self, timeout_s: float = 60.0) -> bool:
        """Flushes, stops the thread and gives the slab back; returns whether all was written."""
        done = self.flush(timeout_s)
        if self._state.writer is not None:
            self._state.writer.stop()
        if self._state.packer is not None:
            self._state.packer.stop()
        self._foreign.close()
        if self._fetcher is not None:
            self._fetcher.close()
        if self._state.disk is not None:
            self._state.disk.close()
        self._state.deliver()
        with self._state.lock:
            self._state.memory.close()
        return done

    def counters(self) -> CacheCounters:
        """What happened since the start."""
        with self._state.lock:
            return replace(self._state.counters)

    def stats(self) -> CacheStats:
        """How full the tiers are, by tenant, and what happened so far."""
        with self._table_lock:
            sessions = len(self._sessions)
        return stats_of(self._state, sessions)

    @property
    def asked(self) -> int:
        """How often blocks were looked up or read since the start: whether requests go on."""
        return self._state.asked

    def levels(self) -> CacheLevels:
        """How full the tiers are; cheap enough to ask every few seconds under load."""
        return levels_of(self._state)

    def top_tenants(self, count: int) -> dict[str, TenantUsage]:
        """Those ``count`` tenants that hold most in memory, and all others together as ``other``.

        Takes time in proportion to the number of tenants.
        """
        return top_tenants_of(self._state, count)

    def _offer_unpacked(self) -> None:
        with self._table_lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            if session.packs is not None and session.packs.behind:
                session.offer_unpacked()

    def _entry(self, tenant_ref: str, session_ref: str, epoch: int) -> CacheSession:
        key = (checked_ref(tenant_ref), checked_ref(session_ref))
        with self._table_lock:
            current = self._sessions.get(key)
            dead = self._tombstones.get(key)
            if dead is not None and epoch <= dead:
                raise SessionDroppedError(
                    f"session {session_ref} of tenant {tenant_ref} was dropped at epoch {dead}; "
                    f"epoch {epoch} may not be used again"
                )
            if current is not None and current.epoch == epoch:
                return current
            if current is not None and current.epoch > epoch:
                raise SessionDroppedError(
                    f"session {session_ref} of tenant {tenant_ref} is at epoch {current.epoch}; "
                    f"epoch {epoch} was replaced"
                )
            session = CacheSession(
                self._state,
                *key,
                epoch,
                fetcher=self._fetcher,
                previous=current,
                on_drop=self._bury,
                on_dropped=self._forget,
            )
            self._sessions[key] = session
            return session

    def _bury(self, session: CacheSession) -> None:
        key = (session.tenant_ref, session.session_ref)
        with self._table_lock:
            self._tombstones[key] = max(self._tombstones.get(key, 0), session.epoch)
            self._tombstones.move_to_end(key)
            if len(self._tombstones) > _TOMBSTONES:
                self._tombstones.popitem(last=False)

    def _forget(self, session: CacheSession) -> None:
        key = (session.tenant_ref, session.session_ref)
        with self._table_lock:
            if self._sessions.get(key) is session:
                del self._sessions[key]
