"""Raise an alert: keep the evidence, put it on record, and stop a log's collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from kvrun.audit.record import Event, Outcome
from kvrun.control.alerts import (
    Alert,
    AlertBook,
    AlertKind,
    DeviationError,
    Evidence,
    UnknownAlertError,
)
from kvrun.control.diagnose import gather
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory, RememberedLog
from kvrun.control.sources import LogSource, LogState


@dataclass(frozen=True, slots=True)
class Alarm:
    """Writes alerts, the memory's note of them, and the control plane's log."""

    alerts: AlertBook
    memory: Memory
    journal: ControlJournal
    now: Callable[[], float]

    def stop(
        self,
        deviation: DeviationError,
        remembered: RememberedLog,
        state: LogState,
        source: LogSource,
    ) -> tuple[Alert, RememberedLog]:
        """The log is not what is remembered of it: collect no more of it."""
        moment = self.now()
        place = self.alerts.place(self.alerts.prepare(remembered.log, deviation.kind, moment))
        named, evidence = gather(deviation, remembered, state, source, place)
        evidence.files["remembered.json"] = msgspec.json.format(msgspec.json.encode(remembered))
        alert = Alert(
            id=place.name,
            kind=named.kind,
            log=remembered.log,
            source=source.name,
            seq=named.seq,
            detail=named.message,
            raised_at=moment,
        )
        stopped = msgspec.structs.replace(remembered, alert=alert.id)
        alert = self.alerts.save(alert, evidence)
        self.memory.save(stopped)
        self._log(alert, stopped)
        return alert, stopped

    def warn(
        self,
        kind: AlertKind,
        remembered: RememberedLog,
        detail: str,
        files: Mapping[str, bytes],
        *,
        about: str,
        count: int = 0,
    ) -> Alert | None:
        """Something that a person must see, though collection goes on.

        None when one of that kind ``about`` the same waits for the log already. One that waits
        with a smaller ``count`` is brought up to date; its first evidence is kept, and the new
        beside it under names that begin with ``latest-``.
        """
        same = (remembered.log, kind, about)
        waiting = next(
            (
                item
                for item in self.alerts.all()
                if item.acknowledged_at is None and (item.log, item.kind, item.about) == same
            ),
            None,
        )
        if waiting is not None and count <= waiting.count:
            return None
        if waiting is not None:
            alert = msgspec.structs.replace(
                waiting, seq=remembered.seen.size, detail=detail, count=count
            )
            files = {f"latest-{name}": content for name, content in files.items()}
        else:
            moment = self.now()
            alert = Alert(
                id=self.alerts.prepare(remembered.log, kind, moment),
                kind=kind,
                log=remembered.log,
                source=remembered.source,
                seq=remembered.seen.size,
                detail=detail,
                raised_at=moment,
                stops=False,
                about=about,
                count=count,
            )
        alert = self.alerts.save(alert, Evidence(files=dict(files)))
        self._log(alert, remembered)
        return alert

    def acknowledge(self, log: str, reason: str, *, start_over: bool) -> list[Alert]:
        """Note why collection of ``log`` may go on. Every waiting alert of it is meant.

        With ``start_over`` what was remembered is put aside and kept, and the log as it is now is
        collected as another history. Raises UnknownAlertError when no alert waits.
        """
        remembered = self.memory.find(log)
        waiting = [
            item for item in self.alerts.all() if item.log == log and item.acknowledged_at is None
        ]
        if remembered is None or (not waiting and not remembered.alert):
            raise UnknownAlertError(
                f"no alert of log {log} waits for an acknowledgement",
                hint="`kvrun audit alerts` lists them",
            )
        # First on record, then in effect.
        for alert in waiting:
            self.journal.record(
                Event.ALERT_ACKNOWLEDGED,
                remembered,
                reason=reason,
                document=msgspec.json.encode(alert),
            )
        done = [self.alerts.acknowledge(item.id, reason, self.now()) for item in waiting]
        self.memory.save(msgspec.structs.replace(remembered, alert=""))
        if start_over:
            self.memory.put_aside(log)
        return done

    def _log(self, alert: Alert, remembered: RememberedLog) -> None:
        self.journal.record(
            Event.LOG_ALERT,
            remembered,
            reason=alert.kind.value,
            document=msgspec.json.encode(alert),
            outcome=Outcome.FAILED,
        )
