"""Loads and stores: sealed blocks to staging slots and back.

Order is the security here. An open is logged before plaintext appears; a sealed block becomes
findable after its record is in the log; a slot is zeroed before it is free again. A block that
does not open is quarantined and recorded, and its slot holds zeros.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from kvrun.cache.events import Tier
from kvrun.cache.handles import Reservation
from kvrun.errors import KvrunError
from kvrun.instance.handles import Handle, HandleTable
from kvrun.instance.in_order import Turn
from kvrun.instance.journal import Journal
from kvrun.instance.layout import EngineLayout, WorkerShape
from kvrun.instance.plaintext import PlaintextSlots
from kvrun.instance.protocol import (
    BlockAt,
    Load,
    Loaded,
    Message,
    ProtocolError,
    Release,
    Released,
    Store,
)
from kvrun.instance.refusals import Refusals
from kvrun.instance.sealing import SealingThreads
from kvrun.instance.staging import StagingRegion
from kvrun.seal.envelope import SALT_BYTES, sealed_size
from kvrun.seal.errors import SealedBlockError
from kvrun.telemetry.traces import NoTracing, SpanKind, Tracing

_REPLY_EVERY = 8
_log = logging.getLogger(__name__)


class WorkerLink:
    """One engine worker as the transfers see it.

    Its staging memory stays mapped until the last task that may touch it has run.
    """

    def __init__(
        self,
        layout: EngineLayout,
        shape: WorkerShape,
        staging: StagingRegion,
        send: Callable[[Message], None],
        hang_up: Callable[[], None],
    ) -> None:
        self.on_closed: Callable[[], None] = lambda: None
        self.layout = layout
        self.shape = shape
        self.staging = staging
        self.send = send
        self.hang_up = hang_up
        self._lock = threading.Lock()
        self._tasks = 0
        self._gone = False

    def task(self, run: Callable[[], None], *, outlives: bool = False) -> Callable[[], None]:
        """``run`` as a task during which the staging memory stays mapped.

        It is left out when the worker is gone before its turn comes, unless it ``outlives`` it:
        what the worker handed over to be sealed is whole, whatever became of the worker.
        """
        with self._lock:
            self._tasks += 1

        def held() -> None:
            try:
                if outlives or not self._gone:
                    run()
            finally:
                with self._lock:
                    self._tasks -= 1
                self._unmap_when_idle()

        return held

    def close(self) -> None:
        """The worker is gone: zero and unmap its staging once no task uses it."""
        self._gone = True
        self._unmap_when_idle()

    def _unmap_when_idle(self) -> None:
        with self._lock:
            if not self._gone or self._tasks or self.staging.closed:
                return
            self.staging.zero_all()
            self.staging.close()
        self.on_closed()


class Transfers:
    """Carries out loads, stores and releases on the sealing threads."""

    def __init__(
        self,
        handles: HandleTable,
        journal: Journal,
        threads: SealingThreads,
        refusals: Refusals,
        tracing: Tracing | None = None,
    ) -> None:
        """``refusals`` counts what is not sealed because of a policy."""
        self._refusals = refusals
        self._tracing = tracing or NoTracing()
        self._handles = handles
        self._journal = journal
        self._threads = threads
        self._plaintext = PlaintextSlots[WorkerLink]()

    def adopt(self, link: WorkerLink) -> None:
        """Serve a worker that has just connected."""
        link.on_closed = lambda: self._plaintext.forget(link)

    def drain(self, handles: Collection[int], timeout_s: float) -> int:
        """Wait until no staging slot holds plaintext of these revoked handles.

        What is left when time is up is zeroed where it is, after its worker's connection was ended:
        a worker that stood still takes what it copies from then on for a failed load. Returns how
        many slots that were.
        """
        left = self._plaintext.wait_clear(handles, timeout_s)
        # Tasks first: the memory of a link that hung up is unmapped once nothing uses it.
        zeroing = [
            link.task(partial(self._clear, link, [slot]), outlives=True) for link, slot in left
        ]
        for link in {link for link, _ in left}:
            link.hang_up()
        for zero in zeroing:
            zero()
        return len(left)

    def load(self, link: WorkerLink, message: Load) -> None:
        """Open blocks into their slots and answer as they are ready.

        Raises:
            ProtocolError: a block names a slot or group that does not exist.
        """
        _check_blocks(link, message.blocks)
        handle = self._handles.live(message.handle)
        if handle is None or handle.finished_at is not None:
            link.send(Loaded(message.job, (), tuple(block.slot for block in message.blocks)))
            return
        self._plaintext.fill(link, [block.slot for block in message.blocks], handle.number)
        shares = _shares(message.blocks, self._threads.threads)
        self._threads.open(link.task(lambda: self._begin_load(link, message, handle, shares)))

    def store(self, link: WorkerLink, message: Store) -> None:
        """Seal blocks out of their slots, then free the slots.

        Raises:
            ProtocolError: a block names a slot or group that does not exist.
        """
        _check_blocks(link, message.blocks)
        handle = self._handles.live(message.handle)
        if handle is None:
            self._threads.seal(link.task(lambda: self._free(link, message.blocks)))
            return
        self._plaintext.fill(link, [block.slot for block in message.blocks], handle.number)
        for share in _shares(message.blocks, self._threads.threads):
            seal = partial(self._store_share, link, handle, share, handle.publishing.begin())
            self._threads.seal(link.task(seal, outlives=True))

    def release(self, link: WorkerLink, message: Release) -> None:
        """Zero slots whose plaintext the worker copied out.

        Raises:
            ProtocolError: a slot does not exist, or there is not one generation a slot.
        """
        if len(message.slots) != len(message.generations):
            raise ProtocolError(
                f"{len(message.slots)} slots come with {len(message.generations)} generations"
            )
        for slot in message.slots:
            link.staging.slot(slot, 0)

        def zero() -> None:
            self._clear(link, message.slots)
            link.send(Released(message.slots, message.generations))

        self._threads.open(link.task(zero))

    def _begin_load(
        self,
        link: WorkerLink,
        message: Load,
        handle: Handle,
        shares: Sequence[Sequence[BlockAt]],
    ) -> None:
        try:
            names = [
                handle.blocks.name(block.block_hash, block.group, link.shape.rank)
                for block in message.blocks
            ]
            tiers = handle.cache.match(names)
            if Tier.OBJECT in tiers:
                handle.cache.prefetch(names)
            self._journal.opening(handle, names, tiers)
            if handle.revoked:
                raise KvrunError("the session was erased")
        except KvrunError as error:
            _log.warning("a load was refused: %s", error.message)
            self._plaintext.clear(link, [block.slot for block in message.blocks])
            link.send(Loaded(message.job, (), tuple(block.slot for block in message.blocks)))
            return
        for share in shares[1:]:
            self._threads.open(
                link.task(partial(self._open_share, link, message.job, handle, share))
            )
        self._open_share(link, message.job, handle, shares[0])

    def _open_share(
        self, link: WorkerLink, job: int, handle: Handle, blocks: Sequence[BlockAt]
    ) -> None:
        with self._tracing.span("kvrun.load", handle.traceparent, SpanKind.INTERNAL) as trace:
            tiers = self._open_blocks(link, job, handle, blocks)
            trace.note(request_id=handle.request_id, blocks=len(tiers))
        self._handles.totals.opened(tiers, len(blocks) - len(tiers))

    def _open_blocks(
        self, link: WorkerLink, job: int, handle: Handle, blocks: Sequence[BlockAt]
    ) -> list[Tier]:
        """Open blocks and answer as they are ready; the tiers of those that opened."""
        ready: list[int] = []
        failed: list[int] = []
        tiers: list[Tier] = []
        for block in blocks:
            tier = self._open_one(link, handle, block)
            if tier is not None:
                tiers.append(tier)
                ready.append(block.slot)
            else:
                self._clear(link, [block.slot])
                failed.append(block.slot)
            if len(ready) + len(failed) >= _REPLY_EVERY:
                link.send(Loaded(job, tuple(ready), tuple(failed)))
                ready, failed = [], []
        if ready or failed:
            link.send(Loaded(job, tuple(ready), tuple(failed)))
        return tiers

    def _open_one(self, link: WorkerLink, handle: Handle, block: BlockAt) -> Tier | None:
        """Open one block; the tier that had it, None where it did not open."""
        size = link.shape.block_bytes[block.group]
        slot = link.staging.slot(block.slot, size)
        try:
            name = handle.blocks.name(block.block_hash, block.group, link.shape.rank)
            context = handle.blocks.context(
                block.block_hash, block.group, link.shape.rank, block.index
            )
            with handle.cache.read(name) as sealed:
                if sealed is None:
                    handle.reuse.failed_blocks += 1
                    return None
                tier = sealed.tier
                if not handle.placement.allows(tier):
                    raise KvrunError(f"the residency policy does not allow blocks in {tier.name}")
                if len(sealed.view) != sealed_size(size):
                    raise _wrong_size(len(sealed.view), size)
                handle.keys.sealer.open_into(context, sealed.view, slot)
        except SealedBlockError as error:
            handle.reuse.failed_blocks += 1
            handle.cache.quarantine(name)
            self._journal.integrity_failure(handle, name, tier, error)
            return None
        except KvrunError as error:
            handle.reuse.failed_blocks += 1
            _log.warning("a block was not opened: %s", error.message)
            return None
        if handle.revoked or handle.keys.ended:
            return None
        if link.shape.rank == 0:
            handle.note_opened(block.group, block.index, tier)
        return tier

    def _store_share(
        self, link: WorkerLink, handle: Handle, blocks: Sequence[BlockAt], turn: Turn
    ) -> None:
        reserved: list[tuple[bytes, Reservation]] = []
        try:
            with self._tracing.span("kvrun.seal", handle.traceparent, SpanKind.INTERNAL) as trace:
                trace.note(request_id=handle.request_id, blocks=len(blocks))
                self._seal_blocks(link, handle, blocks, reserved)
        finally:
            handle.publishing.end(turn, partial(self._publish, handle, reserved))

    def _seal_blocks(
        self,
        link: WorkerLink,
        handle: Handle,
        blocks: Sequence[BlockAt],
        reserved: list[tuple[bytes, Reservation]],
    ) -> None:
        refs = (handle.keys.tenant_ref, handle.keys.session_ref)
        allowed = self._refusals.judge(handle.placement, *refs, Tier.MEMORY)
        try:
            for block in blocks:
                if handle.revoked or not allowed:
                    break
                sealed = self._seal_one(link, handle, block)
                if sealed is not None:
                    reserved.append(sealed)
        except KvrunError as error:
            _log.warning("a store was dropped: %s", error.message)
        finally:
            self._free(link, blocks)

    def _seal_one(
        self, link: WorkerLink, handle: Handle, block: BlockAt
    ) -> tuple[bytes, Reservation] | None:
        rank = link.shape.rank
        size = link.shape.block_bytes[block.group]
        name = handle.blocks.name(block.block_hash, block.group, rank)
        continues = handle.note_name(block.group, rank, block.index, name)
        reservation = handle.cache.reserve(name, sealed_size(size), continues=continues)
        if reservation is None:
            return None
        try:
            context = handle.blocks.context(block.block_hash, block.group, rank, block.index)
            plaintext = link.staging.slot(block.slot, size)
            salt = os.urandom(SALT_BYTES)
            handle.keys.sealer.seal_into(context, plaintext, reservation.view, salt=salt)
        except BaseException:
            reservation.abort()
            raise
        return name, reservation

    def _publish(self, handle: Handle, reserved: Sequence[tuple[bytes, Reservation]]) -> None:
        if not reserved:
            return
        size_bytes = sum(len(reservation.view) for _, reservation in reserved)
        try:
            if handle.revoked or handle.keys.ended:
                raise KvrunError("the session's key was destroyed while its blocks were sealed")
            self._journal.sealed(handle, [name for name, _ in reserved], size_bytes)
        except KvrunError as error:
            _log.warning("sealed blocks were dropped: %s", error.message)
            for _, reservation in reserved:
                reservation.abort()
            return
        for _, reservation in reserved:
            reservation.commit()
        handle.reuse.sealed_blocks += len(reserved)
        self._handles.totals.sealed(len(reserved), size_bytes)

    def _free(self, link: WorkerLink, blocks: Sequence[BlockAt]) -> None:
        slots = tuple(block.slot for block in blocks)
        self._clear(link, slots)
        link.send(Released(slots, tuple(block.generation for block in blocks)))

    def _clear(self, link: WorkerLink, slots: Sequence[int]) -> None:
        for slot in slots:
            link.staging.zero(slot)
        self._plaintext.clear(link, slots)


def _check_blocks(link: WorkerLink, blocks: Sequence[BlockAt]) -> None:
    for block in blocks:
        if not 0 <= block.group < len(link.layout.groups):
            raise ProtocolError(
                f"KV cache group {block.group} does not exist",
                hint=f"0 to {len(link.layout.groups) - 1} are allowed",
            )
        link.staging.slot(block.slot, link.shape.block_bytes[block.group])


def _shares(blocks: Sequence[BlockAt], threads: int) -> list[Sequence[BlockAt]]:
    size = max(1, -(-len(blocks) // threads))
    return [blocks[start : start + size] for start in range(0, len(blocks), size)] or [()]


def _wrong_size(found: int, plain: int) -> SealedBlockError:
    return SealedBlockError(f"a sealed block has {found} bytes, {sealed_size(plain)} were expected")
