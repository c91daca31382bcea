"""One request's way through a slot: restore, compute, save, and what of it was reused.

The order is erase, open and restore; or compute up to the last checkpoint, save, erase, restore
and seal; then generate, save and seal the answer, erase. Whatever goes wrong with the cache costs
the reuse and nothing else; a slot whose content is in doubt is erased and computed anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvrun.engines.admission import Admission
from kvrun.engines.llama_cpp.backend import Backend, BackendError, Timings
from kvrun.engines.llama_cpp.checkpoints import (
    CHECKPOINT_TOKENS,
    chain_hashes,
    chunk_hash,
    last_checkpoint,
)
from kvrun.engines.llama_cpp.link import DaemonLink, Piece
from kvrun.engines.llama_cpp.metrics import SlotMetrics
from kvrun.engines.llama_cpp.pieces import PieceError, StateHead
from kvrun.engines.llama_cpp.slots import Slot
from kvrun.engines.llama_cpp.statefile import StateFormatError, is_ordered, saved_tokens
from kvrun.errors import KvrunError

_CANDIDATES = 2
_MOST_IN_VAIN = 3
_log = logging.getLogger(__name__)


def match_names(tokens: Sequence[int]) -> list[bytes]:
    """What the daemon is asked for: the first piece of a state at each checkpoint before the end.

    The last token is always computed, so a state ends before it.
    """
    return [chunk_hash(chain, 0) for chain in chain_hashes(tokens[:-1])]


@dataclass(slots=True)
class Run:
    """One request in its slot.

    ``reused`` counts the prompt tokens that were restored and used; ``ready`` those that the slot
    holds before the answer is generated; ``again`` says whether they were computed, and restored
    from the state that was saved of them.
    """

    request_id: str
    tokens: list[int]
    admission: Admission
    slot: Slot
    reused: int = 0
    ready: int = 0
    again: bool = False
    storing: list[asyncio.Task[bool]] = field(default_factory=list)


class GovernedSlots:
    """Carries out runs; knows no HTTP."""

    def __init__(self, backend: Backend, link: DaemonLink, metrics: SlotMetrics) -> None:
        self._backend = backend
        self._link = link
        self._metrics = metrics
        self._in_vain = 0

    async def prepare(self, run: Run) -> None:
        """Bring the slot to where only the rest of the prompt and the answer are to be computed.

        A state that was computed just now is restored as well: so every answer starts from cells
        in the same places, and llama.cpp adds up the same numbers in the same order whether they
        were kept or not.
        """
        restored = await self._restore(run)
        wanted = last_checkpoint(len(run.tokens) - 1)
        if wanted > restored:
            prompt = run.tokens[:wanted]
            computed = await self._backend.compute(run.slot.number, prompt)
            restored = await self._judge(run, restored, computed)
            if restored < 0:
                await self._backend.compute(run.slot.number, prompt)
                restored = 0
            saved = await self._save(run, prompt)
            if saved is not None:
                # Where llama.cpp cannot restore a model's states, that would compute all twice.
                if self._in_vain < _MOST_IN_VAIN:
                    run.again = await self._restore_saved(run, prompt)
                self._seal(run, prompt, saved)
        run.ready, run.reused = wanted, restored

    async def generated(self, run: Run, timings: Timings) -> bool:
        """Whether the answer was computed on what the slot was brought to.

        False: something else was in the way, and the answer must not be used.
        """
        if timings.cache_n not in (run.ready, 0):
            return False
        if run.again:
            self._in_vain = 0 if timings.cache_n == run.ready else self._in_vain + 1
        if timings.cache_n != run.ready:
            self._ineffective(run)
        self._link.started(run.request_id, run.reused)
        self._metrics.reused_tokens.inc(run.reused)
        return True

    async def start_over(self, run: Run) -> None:
        """Empty the slot: the answer is to be computed without anything that was kept."""
        await self._settle(run)
        await self._backend.erase(run.slot.number)
        run.ready = run.reused = 0

    async def keep_answer(self, run: Run, answer_tokens: int) -> None:
        """Save the conversation with its answer, up to the last checkpoint in it."""
        held = len(run.tokens) + max(0, answer_tokens - 1)  # the last token was never computed
        wanted = last_checkpoint(held)
        if wanted <= max(run.ready, 0) or not run.admission.may_store or self._link.stateless:
            return
        await self._settle(run)
        scratch = run.slot.scratch
        try:
            await self._backend.save(run.slot.number, scratch.name)
            scratch.open()
            state = scratch.view
            try:
                tokens = saved_tokens(state)
            finally:
                state.release()
        except (BackendError, StateFormatError) as error:
            self._metrics.states.labels("save_failed").inc()
            _log.warning("an answer was not kept: %s", error.message)
            return
        finally:
            scratch.wipe()
        if tokens[: len(run.tokens)] != run.tokens or len(tokens) < wanted:
            _log.warning("an answer was not kept: its slot holds another prompt")
            return
        kept = tokens[:wanted]
        await self._backend.compute(run.slot.number, kept)  # cuts the slot back to the checkpoint
        saved = await self._save(run, kept)
        if saved is not None:
            self._seal(run, kept, saved)

    async def finish(self, run: Run) -> None:
        """Nothing of this request uses its slot's memory any more when this returns."""
        await self._settle(run)
        await self._link.released()
        self._link.finish(run.request_id)

    async def _restore(self, run: Run) -> int:
        """Restore the longest state that the daemon holds; its tokens, or 0."""
        chains = chain_hashes(run.tokens[:-1])
        found = [index for index in range(len(chains)) if run.admission.tier(0, index)]
        for index in reversed(found[-_CANDIDATES:]):
            tokens = (index + 1) * CHECKPOINT_TOKENS
            try:
                if await self._open(run, chains[index], tokens):
                    return tokens
            except (BackendError, PieceError) as error:
                self._metrics.states.labels("restore_failed").inc()
                _log.warning("a state was not restored: %s", error.message)
                await self._backend.erase(run.slot.number)
        return 0

    async def _open(self, run: Run, chain: bytes, tokens: int) -> bool:
        scratch, number, handle = run.slot.scratch, run.slot.number, run.admission.handle
        try:
            scratch.expect_head()
            if not await self._link.load(handle, number, [Piece(chunk_hash(chain, 0), 0)]):
                self._metrics.states.labels("open_failed").inc()
                return False
            head = scratch.found_head()
            if head.tokens != tokens:
                raise PieceError(f"a state of {head.tokens} tokens stands where {tokens} belong")
            scratch.grow(head)
            rest = [Piece(chunk_hash(chain, piece), piece) for piece in range(1, head.pieces)]
            if rest and not await self._link.load(handle, number, rest):
                self._metrics.states.labels("open_failed").inc()
                return False
            if run.admission.handle != handle:
                return False  # the session's key was destroyed meanwhile
            scratch.close_map()
            restored = await self._backend.restore(number, scratch.name)
            if restored != tokens:
                raise BackendError(f"llama.cpp restored {restored} of {tokens} tokens")
            return True
        finally:
            await self._link.settled(number)
            scratch.wipe()

    async def _judge(self, run: Run, restored: int, timings: Timings) -> int:
        """The tokens of a restored state that were used; -1: in doubt, so the slot is empty now."""
        if timings.cache_n == restored:
            return restored
        if timings.cache_n == 0:
            self._ineffective(run)
            return 0
        self._ineffective(run)
        await self._backend.erase(run.slot.number)
        return -1

    def _ineffective(self, run: Run) -> None:
        run.reused = 0
        self._metrics.states.labels("restore_ineffective").inc()
        _log.warning("request %s: restore ineffective, its prompt was computed", run.request_id)

    async def _save(self, run: Run, tokens: Sequence[int]) -> StateHead | None:
        """Save the slot, which holds exactly ``tokens``; None, and no state, where that failed."""
        await self._settle(run)
        scratch = run.slot.scratch
        try:
            saved, written = await self._backend.save(run.slot.number, scratch.name)
            if saved != len(tokens) or written != scratch.size_bytes or not written:
                raise BackendError(f"llama.cpp saved {saved} tokens in {written} bytes")
        except BackendError as error:
            self._not_saved(run, error)
            return None
        return StateHead(len(tokens), written)

    async def _restore_saved(self, run: Run, tokens: Sequence[int]) -> bool:
        """Put the state that was just saved in the place of what was computed.

        False: it failed, and the prompt was computed once more.
        """
        number = run.slot.number
        try:
            await self._backend.erase(number)
            restored = await self._backend.restore(number, run.slot.scratch.name)
            if restored != len(tokens):
                raise BackendError(f"llama.cpp restored {restored} of {len(tokens)} tokens")
        except BackendError as error:
            self._metrics.states.labels("restore_failed").inc()
            _log.warning("a state was not restored: %s", error.message)
            self._in_vain += 1
            await self._backend.erase(number)
            await self._backend.compute(number, tokens)
            return False
        return True

    def _seal(self, run: Run, tokens: Sequence[int], head: StateHead) -> None:
        """Seal the saved state, where it may be kept, while the request goes on."""
        scratch = run.slot.scratch
        if not run.admission.may_store or self._link.stateless:
            scratch.wipe()
            return
        try:
            scratch.open()
            state = scratch.view
            try:
                if not is_ordered(state):
                    raise StateFormatError("a saved state's cells are out of order")
            finally:
                state.release()
        except StateFormatError as error:
            self._not_saved(run, error)
            return
        scratch.describe(head)
        chain = chain_hashes(tokens)[-1]
        pieces = [Piece(chunk_hash(chain, piece), piece) for piece in range(head.pieces)]
        handle, number = run.admission.handle, run.slot.number
        run.storing.append(asyncio.create_task(self._link.store(handle, number, pieces)))

    def _not_saved(self, run: Run, error: KvrunError) -> None:
        self._metrics.states.labels("save_failed").inc()
        _log.warning("a state was not kept: %s", error.message)
        run.slot.scratch.wipe()

    async def _settle(self, run: Run) -> None:
        """Wait until what is being sealed was copied out, then clear the scratch."""
        for storing in run.storing:
            stored = await asyncio.shield(storing)
            self._metrics.states.labels("kept" if stored else "dropped").inc()
        run.storing.clear()
        await self._link.settled(run.slot.number)
        run.slot.scratch.wipe()
