"""The slot server's connections to the instance daemon, for asyncio.

Admissions and transfers are the ones that every engine uses: neither ever waits for the daemon.
One task moves them on and wakes whoever waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvrun.engines.admission import Admission, Admissions, State
from kvrun.engines.channel import WorkerChannel
from kvrun.engines.copying import CopyHandle, PageCopy
from kvrun.engines.llama_cpp.pieces import LAYERS, PIECE_BYTES, TOKENS_PER_PIECE
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.settings import START_TIMEOUT_S, AdapterSettings
from kvrun.engines.transfer import Transfers
from kvrun.instance.connection import Reconnector, make_hello
from kvrun.instance.protocol import GroupLayout, Hello, Role, Scrub, Scrubbed
from kvrun.instance.staging import StagingRegion

_BUSY_S, _IDLE_S = 0.001, 0.02
_STORE_DEADLINE_S = 5.0
_RELEASE_DEADLINE_S = 1.0
_PIECES_BITS = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a state: its name, and its number as the daemon's index."""

    block_hash: bytes
    index: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the daemon is told about this engine."""

    software: str
    fingerprint: bytes
    context_window: int
    scrubs: bool


class DaemonLink:
    """Asks the daemon; every method returns at once or waits no longer than the daemon's deadlines.

    ``scratches`` by number: the memory that transfers copy to and from. ``on_denied`` is called
    with a request that lost its right to the cache, ``on_scrub`` with each order to scrub.
    """

    def __init__(
        self,
        settings: AdapterSettings,
        facts: EngineFacts,
        scratches: Sequence[Scratch],
        *,
        on_denied: Callable[[str], None],
        on_scrub: Callable[[Scrub], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._scratches = scratches
        self._on_denied = on_denied
        self._on_scrub = on_scrub
        self._clock = clock
        self._jobs = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._moving: dict[int, asyncio.Future[bool]] = {}
        self._using: dict[int, set[asyncio.Future[bool]]] = {}
        self._admissions: Admissions | None = None
        self._channel: WorkerChannel | None = None
        self._transfers: Transfers | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            InstanceUnavailableError: nobody listens in time, or the daemon refused.
        """
        scheduler = Reconnector(self._settings.socket, self._hello(Role.SCHEDULER))
        worker = Reconnector(self._settings.socket, self._hello(Role.WORKER))
        asking = await asyncio.to_thread(scheduler.first, START_TIMEOUT_S)
        moving = await asyncio.to_thread(worker.first, START_TIMEOUT_S)
        self._admissions = Admissions(asking, scheduler, self._clock)
        self._channel = WorkerChannel(moving, worker)
        self._transfers = Transfers(self._channel, self._copier, self._clock)
        self._task = asyncio.create_task(self._pump())

    @property
    def stateless(self) -> bool:
        """Whether nothing may be kept."""
        return self._ask.stateless

    async def admit(
        self,
        request_id: str,
        claim: str,
        salt: str,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        traceparent: str,
    ) -> Admission:
        """Whether a request may use the cache, and which of ``hashes`` the daemon holds."""
        if not claim or not salt:
            return self._ask.deny(request_id, "the request carries no claim")
        admission = self._ask.begin(request_id, claim, salt, hashes, prompt_tokens, traceparent)
        if admission.state is State.PENDING:
            self._waiting[request_id] = asyncio.get_running_loop().create_future()
            try:
                await self._waiting[request_id]
            finally:
                self._waiting.pop(request_id, None)
        return admission

    def reason(self, request_id: str) -> str:
        """Why a request may not use the cache; empty where it may, or is not known."""
        admission = self._ask.get(request_id)
        return "" if admission is None else admission.reason

    def started(self, request_id: str, loaded_tokens: int) -> None:
        """Tell the daemon what a request reused."""
        self._ask.start(request_id, 0, loaded_tokens)

    def finish(self, request_id: str) -> None:
        """The request ended."""
        self._ask.finish(request_id)

    async def load(self, handle: int, number: int, pieces: Sequence[Piece]) -> bool:
        """Open pieces into scratch ``number``; False where one of them did not open."""
        job = next(self._jobs)
        blocks = _blocks(number, pieces)
        moved = self._move(job, number, lambda: self._move_by.load(job, handle, blocks))
        # A transfer whose request is given up ends by itself: its memory is in use until then.
        return await asyncio.shield(moved)

    async def store(self, handle: int, number: int, pieces: Sequence[Piece]) -> bool:
        """Seal pieces of scratch ``number``; False where some were dropped, after a deadline.

        Returns once none of them is read from the scratch any more.
        """
        if not handle:
            return False
        job = next(self._jobs)
        blocks = _blocks(number, pieces)
        moved = self._move(job, number, lambda: self._move_by.store(job, handle, blocks))
        try:
            async with asyncio.timeout(_STORE_DEADLINE_S):
                return await asyncio.shield(moved)
        except TimeoutError:
            return False
        finally:
            if not moved.done():
                self._move_by.settle_stores({job})

    async def settled(self, number: int) -> None:
        """Returns once no transfer uses scratch ``number``."""
        while using := self._using.get(number):
            await asyncio.wait(set(using))

    async def released(self) -> None:
        """Returns once the daemon sealed what it was given, or after a deadline.

        A session's next request then finds what this one kept.
        """
        channel = self._channel
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_DEADLINE_S):
                while channel is not None and channel.connected:
                    if channel.free_slots == channel.slots:
                        return
                    await asyncio.sleep(_BUSY_S)

    def report(self, call: int, scrubbed: int, held: int) -> None:
        """Answer an order to scrub."""
        self._ask.report_scrub(Scrubbed(call, 0, scrubbed, held))

    async def close(self) -> None:
        """Let the daemon go."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._transfers is not None:
            self._transfers.close()
        if self._admissions is not None:
            self._admissions.close()

    @property
    def _ask(self) -> Admissions:
        assert self._admissions is not None
        return self._admissions

    @property
    def _move_by(self) -> Transfers:
        assert self._transfers is not None
        return self._transfers

    def _move(self, job: int, number: int, begin: Callable[[], None]) -> asyncio.Future[bool]:
        moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._moving[job] = moved
        using = self._using.setdefault(number, set())
        using.add(moved)
        moved.add_done_callback(using.discard)
        begin()
        return moved

    async def _pump(self) -> None:
        while True:
            try:
                self._step()
            except Exception:
                _log.exception("the link to the instance daemon failed; it goes on")
            await asyncio.sleep(_BUSY_S if self._busy() else _IDLE_S)

    def _busy(self) -> bool:
        channel = self._channel
        held = channel is not None and channel.free_slots < channel.slots
        return held or bool(self._waiting or self._moving)

    def _step(self) -> None:
        for request_id in self._ask.poll():
            self._on_denied(request_id)
        for request_id, waiting in list(self._waiting.items()):
            admission = self._ask.get(request_id)
            decided = admission is None or admission.state is not State.PENDING
            if decided and not waiting.done():
                waiting.set_result(None)
        for done in self._move_by.poll():
            moved = self._moving.pop(done.job, None)
            if moved is not None and not moved.done():
                moved.set_result(not done.failed)
        for order in self._ask.take_scrubs():
            self._on_scrub(order)

    def _copier(self, region: StagingRegion) -> ScratchCopier:
        return ScratchCopier(region, self._scratches)

    def _hello(self, role: Role) -> Hello:
        return make_hello(
            role,
            self._settings.token,
            self._facts.software,
            fingerprint=self._facts.fingerprint,
            groups=(GroupLayout(TOKENS_PER_PIECE, 1, LAYERS),),
            block_bytes=(PIECE_BYTES,) if role is Role.WORKER else (),
            context_window=self._facts.context_window,
            scrubs=self._facts.scrubs and role is Role.SCHEDULER,
        )


class ScratchCopier:
    """Copies pieces between scratches and staging at once; every handle is complete."""

    def __init__(self, region: StagingRegion, scratches: Sequence[Scratch]) -> None:
        self._region = region
        self._scratches = scratches

    def block_bytes(self, group: int) -> int:
        """Bytes of a piece."""
        return PIECE_BYTES

    def submit_gather(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Copy pieces into staging."""
        for copy in batch:
            scratch, piece = self._place(copy)
            scratch.copy_out(piece, self._region.address + copy.offset)
        return None

    def submit_scatter(self, batch: Sequence[PageCopy]) -> CopyHandle:
        """Copy pieces from staging."""
        for copy in batch:
            scratch, piece = self._place(copy)
            scratch.copy_in(piece, self._region.address + copy.offset)
        return None

    def submit_zero(self, block_ids: Sequence[int]) -> CopyHandle:
        """Nothing of the engine's memory is in reach here."""
        return None

    def done(self, handle: CopyHandle) -> bool:
        """Whether a batch is complete."""
        return True

    def wait(self, handle: CopyHandle) -> None:
        """Every batch is complete."""

    def close(self) -> None:
        """Nothing is held."""

    def _place(self, copy: PageCopy) -> tuple[Scratch, int]:
        return self._scratches[copy.block_id >> _PIECES_BITS], copy.block_id & (
            (1 << _PIECES_BITS) - 1
        )


def _blocks(number: int, pieces: Sequence[Piece]) -> list[tuple[Piece, int]]:
    return [(piece, number << _PIECES_BITS | piece.index) for piece in pieces]
