"""The collector: pulls an instance's log, verifies it against what is remembered, and stores it.

Order of one closed segment: verified and synced in the tail; stored (records, manifest,
countersigned checkpoint); remembered as stored; released at the instance. A crash between any two
repeats the later ones, and each of them finds what was done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from kvrun.audit.chain import ChainPoint
from kvrun.audit.checkpoint import Checkpoint, open_checkpoint, parse_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import Frontier
from kvrun.audit.note import parse_note, parse_verifier_key
from kvrun.audit.record import Event
from kvrun.audit.segment import TreePoint
from kvrun.control.alarm import Alarm
from kvrun.control.alerts import AlertBook, AlertKind, DeviationError
from kvrun.control.collected import CollectedLog
from kvrun.control.cosigner import Cosigner
from kvrun.control.follow import read_manifest, read_note
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory, RememberedLog
from kvrun.control.sources import LogSource, LogState, SourceUnavailableError
from kvrun.control.transfer import Keeping, Transfer
from kvrun.control.witness import Witness
from kvrun.control.witnessing import WitnessRound
from kvrun.storage import Storage


class CollectOutcome(StrEnum):
    """How the collection of one log ended."""

    COLLECTED = "collected"
    UNCHANGED = "unchanged"
    UNAVAILABLE = "unavailable"
    ALERT = "alert"
    STOPPED = "stopped"
    RETIRED = "retired"


class CollectReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one collection did. ``size`` is how many records are verified now, ``stored_size`` how
    many of them Storage holds, ``admissions`` how many say that a request was admitted or denied.
    ``witnesses`` says of each what it answered: "cosigned" or why not.
    """

    source: str
    outcome: CollectOutcome
    log: str = ""
    size: int = 0
    new_records: int = 0
    stored_size: int = 0
    stored_bytes: int = 0
    freed_bytes: int = 0
    admissions: int = 0
    witnesses: dict[str, str] = {}
    alert: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """One instance whose log is collected, and whose it is."""

    source: LogSource
    workspace: str
    deployment: str


@dataclass(slots=True)
class Collector:
    """Collects logs into ``storage``. One at a time; the caller holds the control plane's lock."""

    storage: Storage
    memory: Memory
    alerts: AlertBook
    journal: ControlJournal
    cosigner: Cosigner
    witnesses: Sequence[Witness]
    now: Callable[[], float]

    def collect(self, target: Target, *, reason: str = "scheduled") -> CollectReport:
        """Collect what is new of one log.

        A log that is not what is remembered of it is the outcome ``alert``, an instance that does
        not answer ``unavailable``. Raises StorageError, AuditError and the like when the collector
        itself cannot work; the next call goes on where this one stopped.
        """
        source = target.source
        try:
            remembered = self.memory.of_source(source.name)
            if remembered is not None and (remembered.alert or remembered.retired):
                return _stopped(remembered)
            state = source.state()
            if remembered is None:
                remembered = self._first_sight(target, state)
                if remembered.alert or remembered.retired:
                    return _stopped(remembered)
        except SourceUnavailableError as error:
            return _unavailable(source, error.message)
        transfer = Transfer(Keeping(self.storage, self.memory, self.cosigner), source, remembered)
        try:
            checkpoint = self._check_state(remembered, state)
            if checkpoint.size == remembered.seen.size and remembered.note:
                remembered = self._follow_key(remembered, state.verifier_key, state.checkpoint)
                freed = self._release_again(target, remembered)
                return _report(CollectOutcome.UNCHANGED, remembered, freed_bytes=freed)
            return self._advance(target, transfer, checkpoint, state, reason)
        except SourceUnavailableError as error:
            return _unavailable(source, error.message)
        except DeviationError as deviation:
            return self._stop(deviation, transfer.remembered, state, source)
        finally:
            transfer.close()

    def _first_sight(self, target: Target, state: LogState) -> RememberedLog:
        """What to remember of a log that this instance shows for the first time."""
        source = target.source
        try:
            origin = parse_checkpoint(parse_note(state.checkpoint).text).origin
            key = parse_verifier_key(state.verifier_key)
        except NoteFormatError as error:
            raise SourceUnavailableError(
                f"{source.name} shows no checkpoint and key that could be remembered: "
                f"{error.message}"
            ) from None
        known = self.memory.find(origin)
        if known is not None:
            return msgspec.structs.replace(known, source=source.name)
        start = TreePoint.of(ChainPoint.start(origin), Frontier())
        moment = self.now()
        fresh = RememberedLog(
            log=origin,
            generation=self.memory.next_generation(origin),
            source=source.name,
            workspace=target.workspace,
            deployment=target.deployment,
            key=key.text(),
            note="",
            first=start,
            seen=start,
            stored=start,
            first_seen_at=moment,
            collected_at=moment,
        )
        try:
            found = CollectedLog.of(self.storage, fresh).end(key, self.cosigner.keys)
        except DeviationError as error:
            return self._alarm.stop(error, fresh, state, source)[1]
        if found is not None:
            # The collector's own memory was lost; what it countersigned was not.
            first, stored, note = found
            return msgspec.structs.replace(
                fresh, first=first, seen=stored, stored=stored, note=note.decode()
            )
        segments = source.segments(0)
        if segments and segments[0].first_seq:
            if not segments[0].manifest:
                raise SourceUnavailableError(
                    f"{source.name} begins with the open segment from record "
                    f"{segments[0].first_seq} on; it is collected once that is closed"
                )
            try:
                before = read_manifest(segments[0].manifest, key, origin).before
            except DeviationError as error:
                return self._alarm.stop(error, fresh, state, source)[1]
            return msgspec.structs.replace(fresh, first=before, seen=before, stored=before)
        return fresh

    def _check_state(self, remembered: RememberedLog, state: LogState) -> Checkpoint:
        seen = remembered.seen.size
        if not state.checkpoint:
            what = f"the log is gone; {seen} records of it were verified before"
            raise DeviationError(AlertKind.LOG_MISSING, seen, what)
        try:
            checkpoint = read_note(state.checkpoint, remembered.verifier_key, remembered.log)
        except DeviationError as error:
            if error.kind is AlertKind.NOT_SIGNED and state.verifier_key != remembered.key:
                what = "the log is signed by another key than the one that is remembered"
                raise DeviationError(AlertKind.KEY_CHANGED, error.seq, what) from None
            raise
        if checkpoint.size < seen:
            what = f"the log signs for {checkpoint.size} records; {seen} were verified before"
            raise DeviationError(AlertKind.ROLLED_BACK, checkpoint.size, what)
        if checkpoint.size == seen and checkpoint.root != remembered.root:
            what = f"the log signs for other {seen} records than were verified before"
            raise DeviationError(AlertKind.FORKED, seen, what)
        return checkpoint

    def _advance(
        self,
        target: Target,
        transfer: Transfer,
        checkpoint: Checkpoint,
        state: LogState,
        reason: str,
    ) -> CollectReport:
        before = transfer.remembered
        witnessing = WitnessRound(self.witnesses)
        transfer.run(checkpoint, state.checkpoint, witnessing)
        after = transfer.remembered
        collected = CollectedLog.of(self.storage, after)
        signed, after = witnessing.ask(
            self.cosigner.cosign(transfer.note),
            after.seen.size,
            collected,
            after,
            self.memory.tail(after.log),
        )
        after = msgspec.structs.replace(after, note=signed.decode(), collected_at=self.now())
        # Written first: after a crash a collection is on record twice rather than never.
        self.journal.record(
            Event.LOG_COLLECTED,
            after,
            reason=reason,
            document=parse_note(signed).text,
            size_bytes=transfer.stored_bytes,
        )
        self.memory.save(after)
        # Only now: segments that closed before the key was replaced carry the earlier one alone.
        after = self._follow_key(after, state.verifier_key, state.checkpoint)
        after = self._follow_key(after, transfer.signer, transfer.signer_note)
        for name, message, evidence in witnessing.refused:
            detail = f"{name}: {message}"
            files = {"witness-answer": evidence, "collected-checkpoint": signed}
            # The sizes that it names grow with each collection; what it says is the same.
            about = f"{name}: {re.sub('[0-9]+', '#', message)}"
            self._alarm.warn(AlertKind.WITNESS_REFUSED, after, detail, files, about=about)
        return _report(
            CollectOutcome.COLLECTED,
            after,
            new_records=after.seen.size - before.seen.size,
            stored_bytes=transfer.stored_bytes,
            freed_bytes=transfer.freed_bytes + self._release_again(target, after),
            witnesses=witnessing.answers,
        )

    def _follow_key(self, remembered: RememberedLog, named: str, note: bytes) -> RememberedLog:
        """Pin the key that replaced the pinned one, where both signed a verified checkpoint.

        The newest key signs first; so an earlier one is never taken up again.
        """
        pinned = remembered.verifier_key
        try:
            newest = parse_verifier_key(named)
            signed_by = open_checkpoint(note, [pinned, newest]).signed_by
        except NoteFormatError:
            return remembered
        if newest.name != pinned.name or signed_by != (newest, pinned):
            return remembered
        after = msgspec.structs.replace(remembered, key=newest.text())
        self.journal.record(
            Event.KEY_ROTATED,
            after,
            reason=f"the log's key {pinned.key_id.hex()} was replaced by {newest.key_id.hex()}",
            document=note,
        )
        self.memory.save(after)
        return after

    @property
    def _alarm(self) -> Alarm:
        return Alarm(self.alerts, self.memory, self.journal, self.now)

    def _stop(
        self,
        deviation: DeviationError,
        remembered: RememberedLog,
        state: LogState,
        source: LogSource,
    ) -> CollectReport:
        alert, stopped = self._alarm.stop(deviation, remembered, state, source)
        message = f"{alert.kind}: {alert.detail}"
        return _report(CollectOutcome.ALERT, stopped, alert=alert.id, message=message)

    def _release_again(self, target: Target, remembered: RememberedLog) -> int:
        """A crash may have come between storing and releasing."""
        if not remembered.stored.size:
            return 0
        return target.source.release(remembered.stored.size - 1)


def _report(
    outcome: CollectOutcome,
    remembered: RememberedLog,
    **what: Any,
) -> CollectReport:
    return CollectReport(
        source=remembered.source,
        outcome=outcome,
        log=remembered.log,
        size=remembered.seen.size,
        stored_size=remembered.stored.size,
        admissions=remembered.admissions,
        **what,
    )


def _stopped(remembered: RememberedLog) -> CollectReport:
    if remembered.retired:
        return _report(CollectOutcome.RETIRED, remembered, message=remembered.retired)
    message = f"`kvrun audit acknowledge {remembered.log}` lets collection go on"
    return _report(CollectOutcome.STOPPED, remembered, alert=remembered.alert, message=message)


def _unavailable(source: LogSource, message: str) -> CollectReport:
    return CollectReport(source=source.name, outcome=CollectOutcome.UNAVAILABLE, message=message)
