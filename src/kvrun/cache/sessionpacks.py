"""One session's packs: finding them, reading blocks out of them, writing and merging them.

The places of blocks are in the session's index, guarded by the index lock; everything here that
asks Storage runs without it. Who finds a pack gone, half or foreign forgets its blocks: a miss.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kvrun.cache.errors import ObjectTierOffError, PackFormatError
from kvrun.cache.folder import FolderDrop
from kvrun.cache.object_tier import ObjectTier, StoredPack
from kvrun.cache.pack import (
    FOOTER_BYTES,
    PackEntry,
    PackFooter,
    PackIndex,
    build_pack,
    decode_index,
    encode_index,
    pack_name,
    parse_footer,
)
from kvrun.cache.packtable import Pack, PackTable, entry_of, packed_at
from kvrun.cache.placement import Basis
from kvrun.seal.errors import SealedBlockError
from kvrun.storage import ObjectMissingError

_TAIL_BYTES = 16 * 1024
_MICROSECONDS = 10**6
_log = logging.getLogger(__name__)


class PackKeys(Protocol):
    """What seals and opens the indexes of one session's packs; both raise KvrunError."""

    @property
    def fingerprint(self) -> bytes:
        """32 bytes: the model whose blocks are stored now."""

    @property
    def generation(self) -> int:
        """The generation of the session's key."""

    def seal_index(self, name: str, plain: bytes) -> bytes:
        """The sealed index of the pack ``name``."""

    def open_index(self, name: str, sealed: memoryview) -> bytes:
        """The index of the pack ``name``."""


class PackedIndex(Protocol):
    """The session's index as its packs see it; the index lock guards what is named *_locked."""

    @property
    def tenant_ref(self) -> str:
        """The pseudonym of the tenant."""

    @property
    def session_ref(self) -> str:
        """The pseudonym of the session."""

    @property
    def dropped(self) -> bool:
        """Whether the session is gone."""

    def pack_settled_locked(self) -> Basis | None:
        """On what basis a pack that was just written may stay; None where it may not."""

    def foreign_pack_left(self, blocks: int, size: int) -> None:
        """A pack of another model was deleted."""

    def packed_locked(self, name: bytes) -> int:
        """Where a block is packed, -1 where it is not."""

    def put_packed_locked(self, name: bytes, packed: int) -> None:
        """A block is packed there, or (-1) nowhere."""

    def names_in_pack_locked(self, number: int) -> list[bytes]:
        """The blocks whose place is in a pack."""


class SessionPacks:
    """The packs of one session. ``lock`` is the index lock. Thread-safe."""

    def __init__(
        self,
        index: PackedIndex,
        tier: ObjectTier,
        lock: threading.Lock,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.tier = tier
        self.table = PackTable(tier.totals)
        self.keys: PackKeys | None = None
        self.loaded = False
        self.behind = False
        """Blocks were left out while the store was away."""
        self.ready = threading.Event()
        self.writing = False
        self._index = index
        self._refs = (index.tenant_ref, index.session_ref)
        self._lock = lock
        self._now = now
        self._wall = wall
        self._random = random_bytes
        self._listed_at = 0.0
        self._passed_over: dict[str, float] = {}
        # One look or one write at a time; never held while the index lock is waited for by others.
        self._io = threading.Lock()

    def due(self) -> bool:
        """Whether it is time to look for packs: never done yet, or others may have written some."""
        if not self.tier.accepts() or self.keys is None:
            return False
        return not self.loaded or self._now() - self._listed_at >= self.tier.settings.relist_s

    def load(self) -> None:
        """Finds the session's packs and indexes those that are new.

        Raises ObjectTierOffError, or what keys raise that cannot be used; a pack that does not open
        is passed over.
        """
        with self._io:
            if not self.due() or self._index.dropped:
                return
            found = {pack.name: pack for pack in self.tier.packs(*self._refs)}
            with self._lock:
                known = {pack.name for pack in self.table.packs()}
            old = self._now() - _BAD_S
            waits = {name for name, at in self._passed_over.items() if at > old}
            new = [found[name] for name in found.keys() - known - waits]
            indexes = self.tier.readers.map(self._read_index, new)
            opened = [
                (pack.name, index)
                for pack, index in zip(new, indexes, strict=True)
                if index is not None
            ]
            opened.sort(key=lambda item: (item[1].created, item[0]))
            with self._lock:
                for name in known - found.keys():
                    self._forget_locked(name)
                for name, index in opened:
                    self._adopt_locked(name, index)
                idle = [pack.name for pack in self.table.packs() if not pack.live_blocks]
                for name in idle:
                    self.table.remove(name)
            self.loaded = True
            self._listed_at = self._now()
        self.ready.set()
        for name in idle:
            # All of its blocks are in newer packs too.
            self.tier.delete(*self._refs, name)

    def read(self, pack: str, start: int, size: int) -> memoryview:
        """A part of a pack. Raises ObjectTierOffError, or PackFormatError after which its blocks
        are forgotten."""
        try:
            return self.tier.read(*self._refs, pack, start, size)
        except ObjectMissingError as error:
            # Merged by another instance, or deleted: what it wrote instead is looked for.
            self.forget(pack)
            self._listed_at = self._now() - self.tier.settings.relist_s
            raise PackFormatError(error.message) from error

    def forget(self, pack: str) -> None:
        """The blocks of this pack are not there any more."""
        with self._lock:
            self._forget_locked(pack)

    def write(self, blocks: Sequence[tuple[bytes, memoryview]]) -> Basis | None:
        """Stores blocks as one new pack and indexes it; what it is there by, None where it may not.

        Raises ObjectTierOffError, TierBoundError, or what the keys raise; nothing is indexed then.
        """
        with self._io:
            self.writing = True
            try:
                name, index = self._store(blocks)
                with self._lock:
                    basis = self._index.pack_settled_locked()
                    if basis is not None:
                        self._adopt_locked(name, index)
                        return basis
            finally:
                self.writing = False
        # Dropped meanwhile, or another policy came: whoever takes the session's packs away, and
        # puts that on record, may have looked before this one was there.
        if self._index.dropped:
            self.tier.drop(*self._refs)  # which is remembered until it is done
        elif not self.tier.delete(*self._refs, name):
            self.tier.delete_later(*self._refs, [name])
        return None

    def merge(self) -> bool:
        """Writes what is alive in mostly dead or many small packs anew, then deletes those.

        Raises as ``write`` does.
        """
        with self._lock:
            victims = self._victims_locked()
            wanted = [found for pack in victims for found in self._alive_locked(pack)]
        if not victims:
            return False
        blocks = [(name, self.read(pack, *span)) for name, pack, span in wanted]
        if blocks and self.write(blocks) is None:
            return False
        with self._lock:
            # A block that was read again meanwhile still points into the old pack: it is kept.
            done = [pack.name for pack in victims if not pack.live_blocks]
            for name in done:
                self.table.remove(name)
        for name in done:
            self.tier.delete(*self._refs, name)
        self.tier.note(merged=1)
        return True

    def expire(self, before: float) -> tuple[int, int]:
        """Deletes the packs written at ``before`` or earlier, seconds since 1970: blocks, bytes."""
        with self._lock:
            old = [p for p in self.table.packs() if p.created <= before * _MICROSECONDS]
            blocks, size = sum(p.live_blocks for p in old), sum(p.live_bytes for p in old)
            for pack in old:
                self._forget_locked(pack.name)
        for pack in old:
            self.tier.delete(*self._refs, pack.name)
        return blocks, size

    def drop(self) -> FolderDrop:
        """Deletes all packs; the session is dropped already."""
        with self._lock:
            self.table.clear()
        self.ready.set()
        return self.tier.drop(*self._refs, busy=self.writing)

    def _store(self, blocks: Sequence[tuple[bytes, memoryview]]) -> tuple[str, PackIndex]:
        keys = self.keys
        if keys is None:
            raise ObjectTierOffError("the session's keys are not at hand")
        name = pack_name(self._random(16), len(blocks))
        with self._lock:
            # Later than what is known, whatever the clock says: the newest pack counts.
            newest = max((pack.created for pack in self.table.packs()), default=0)
        index = PackIndex(
            keys.fingerprint,
            max(int(self._wall() * _MICROSECONDS), newest + 1),
            tuple(PackEntry(block_name, len(data)) for block_name, data in blocks),
        )
        sealed = keys.seal_index(name, encode_index(index))
        data = build_pack([view for _, view in blocks], sealed, generation=keys.generation)
        self.tier.check_room(self._refs[0], len(data))
        self.tier.write(*self._refs, name, data)
        return name, index

    def _read_index(self, pack: StoredPack) -> PackIndex | None:
        keys = self.keys
        assert keys is not None
        try:
            if pack.size_bytes <= FOOTER_BYTES:
                raise PackFormatError(f"{pack.name} is too short for a pack")
            size = min(_TAIL_BYTES, pack.size_bytes)
            tail = self.tier.read(*self._refs, pack.name, pack.size_bytes - size, size)
            footer = parse_footer(tail, size_bytes=pack.size_bytes)
            index = decode_index(
                keys.open_index(pack.name, self._sealed_index(pack, footer, tail)),
                name=pack.name,
                footer=footer,
            )
        except ObjectMissingError:
            return None
        except (PackFormatError, SealedBlockError) as error:
            # A half or foreign pack, or a store that lies: not used, asked for again much later.
            _log.warning("a pack was passed over: %s", error.message)
            self._passed_over[pack.name] = self._now()
            self.tier.note(refused=1)
            return None
        if index.fingerprint == keys.fingerprint:
            return index
        age_s = self._wall() - index.created / _MICROSECONDS
        # Another model's, and no deployment runs two for so long.
        is_old = age_s > self.tier.settings.foreign_s
        if is_old and self.tier.delete(*self._refs, pack.name):
            self._index.foreign_pack_left(pack.blocks, pack.size_bytes)
        self._passed_over[pack.name] = self._now()
        return None

    def _sealed_index(self, pack: StoredPack, footer: PackFooter, tail: memoryview) -> memoryview:
        size = footer.index_bytes
        if size + FOOTER_BYTES <= len(tail):
            return tail[len(tail) - FOOTER_BYTES - size : len(tail) - FOOTER_BYTES]
        return self.tier.read(*self._refs, pack.name, footer.blocks_bytes, size)

    def _adopt_locked(self, name: str, index: PackIndex) -> None:
        number = self.table.add(name, index)
        if number is None:
            return
        for position, entry in enumerate(index.entries):
            packed, before = packed_at(number, position), self._index.packed_locked(entry.name)
            if before >= 0:
                found = self.table.find(before)
                if found is not None and (found[0].created, found[0].name) > (index.created, name):
                    continue
                self.table.bury(before)
            self._index.put_packed_locked(entry.name, packed)
            self.table.revive(packed)

    def _forget_locked(self, name: str) -> None:
        number = self.table.remove(name)
        if number is not None:
            for block in self._index.names_in_pack_locked(number):
                self._index.put_packed_locked(block, -1)

    def _victims_locked(self) -> list[Pack]:
        packs = self.table.packs()
        victims = [pack for pack in packs if 2 * pack.live_bytes < pack.blocks_bytes]
        small = [p for p in packs if 8 * p.blocks_bytes < self.tier.settings.pack_bytes]
        if len(small) >= _MANY_SMALL:
            victims += [pack for pack in small if pack not in victims]
        room, chosen = self.tier.settings.pack_bytes, []
        for pack in victims:
            room -= pack.live_bytes
            if room < 0:
                break
            chosen.append(pack)
        return chosen

    def _alive_locked(self, pack: Pack) -> list[tuple[bytes, str, tuple[int, int]]]:
        """The blocks that are read from a pack: name, pack, and where in it they are."""
        number = self.table.number(pack.name)
        packed = {self._index.packed_locked(n): n for n in self._index.names_in_pack_locked(number)}
        return [(packed[at], pack.name, pack.span(entry_of(at))) for at in sorted(packed)]


_MANY_SMALL = 8
_BAD_S = 300.0
