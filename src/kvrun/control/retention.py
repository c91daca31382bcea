"""Prune collected records that are older than a workspace keeps them, and say so where they were.

Age counts from the collector's own signature at a segment's end, not from the writer's clock: an
instance cannot have its log pruned early. What is pruned is always the oldest, and a signed
tombstone takes its place first, so what is left verifies from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvrun.audit.checkpoint import open_checkpoint
from kvrun.audit.record import Event
from kvrun.audit.segment import Manifest, TreePoint, segment_name
from kvrun.audit.statement import TOMBSTONE, PrunedSegment, Tombstone, sign_statement
from kvrun.control.collected import CollectedLog, manifest_name, tombstone_name
from kvrun.control.cosigner import Cosigner
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory, RememberedLog
from kvrun.errors import KvrunError
from kvrun.storage import ObjectMissingError, Storage

DAY_S = 86_400


class Pruned(msgspec.Struct, frozen=True):
    """What was pruned of one log: records, segments and bytes; ``kept`` names what would not go."""

    log: str
    records: int
    segments: int
    size_bytes: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """Prunes logs in ``storage``. The caller holds the control plane's lock."""

    storage: Storage
    memory: Memory
    journal: ControlJournal
    cosigner: Cosigner
    now: Callable[[], float]

    def prune(self, remembered: RememberedLog, *, keep_days: int) -> Pruned | None:
        """Prune one log; None when there is nothing to prune. 0 days keeps everything.

        Objects that Storage will not delete yet (Object Lock) stay and are tried again next time.
        Raises StorageError, AuditError.
        """
        collected = CollectedLog.of(self.storage, remembered)
        self._finish(collected, remembered)
        if not keep_days:
            return None
        oldest = self.now() - keep_days * DAY_S
        manifests: list[Manifest] = []
        for first_seq in collected.manifests():
            manifest = collected.manifest(first_seq)
            if manifest.before.size < remembered.first.size:
                continue
            collected_at = self._collected_at(collected, remembered, manifest.after)
            if collected_at is None or collected_at >= oldest:
                break
            manifests.append(manifest)
        if not manifests:
            return None
        tombstone = Tombstone(
            after=manifests[-1].after,
            before=manifests[0].before,
            reason="retention",
            segments=[
                PrunedSegment(
                    file_bytes=item.file_bytes, first_seq=item.before.size, sha256=item.sha256
                )
                for item in manifests
            ],
        )
        note = self._sign(remembered, tombstone)
        name = tombstone_name(tombstone.before.size, tombstone.after.size)
        try:
            note = self.storage.get(f"{collected.folder}/{name}")
        except ObjectMissingError:
            collected.keep(name, note)
        self.journal.record(
            Event.LOG_PRUNED,
            remembered,
            reason=tombstone.reason,
            document=note,
            size_bytes=sum(item.file_bytes for item in manifests),
        )
        updated = msgspec.structs.replace(remembered, first=tombstone.after)
        self.memory.save(updated)
        return Pruned(
            remembered.log,
            tombstone.after.size - tombstone.before.size,
            len(manifests),
            sum(item.file_bytes for item in manifests),
            self._finish(collected, updated),
        )

    def _finish(self, collected: CollectedLog, remembered: RememberedLog) -> str:
        """Delete what lies before the place where what is kept begins; what would not go, or ""."""
        for first_seq in collected.manifests():
            if first_seq >= remembered.first.size:
                break
            # The manifest last: while it is there, the next time finds what is left.
            for name in (segment_name(first_seq), manifest_name(first_seq)):
                try:
                    self.storage.delete(f"{collected.folder}/{name}")
                except KvrunError as error:
                    return error.message
        return ""

    def _collected_at(
        self, collected: CollectedLog, remembered: RememberedLog, after: TreePoint
    ) -> float | None:
        """When this collector signed for a segment's end; None when it did not."""
        try:
            note = collected.note_at(after.size)
        except ObjectMissingError:
            return None
        opened = open_checkpoint(note, [remembered.verifier_key], self.cosigner.keys)
        return max((float(item.time) for item in opened.cosigned_by), default=None)

    def _sign(self, remembered: RememberedLog, tombstone: Tombstone) -> bytes:
        return sign_statement(
            TOMBSTONE,
            remembered.log,
            msgspec.json.encode(tombstone, order="sorted"),
            self.cosigner.name,
            self.cosigner.private_key,
            int(self.now()),
        )
