"""What every part of :class:`kvrun.accounts.Accounts` works with."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import ConflictError
from kvrun.accounts.events import AccessEvent, AccessEventKind, OnEvent, ignore
from kvrun.accounts.tokens import RandomBytes
from kvrun.state.database import Database

MAX_FAILURES_A_MINUTE = 60
"""Failed sign-ins that are put on record one by one."""

NOTE_USE_EVERY_S = 60
"""The last use of a key or a sign-in is written at most so often: reading a page is no write."""


@dataclass(frozen=True, slots=True)
class SignInLimits:
    """How long a sign-in lasts: without being used, and at all."""

    idle_s: int = 3600
    absolute_s: int = 12 * 3600


class Change:
    """A transaction and the events that belong to it."""

    def __init__(self, session: Session, now: int) -> None:
        self.session = session
        self.now = now
        self.events: list[AccessEvent] = []

    def note(
        self,
        kind: AccessEventKind,
        actor: Actor | None,
        workspace_id: str | None,
        subject: str,
        detail: str = "",
        *,
        alert: bool = False,
    ) -> None:
        """Tell of it when the transaction is about to commit."""
        self.events.append(
            AccessEvent(
                kind,
                self.now,
                actor_id=actor.id if actor else "",
                actor_kind=actor.kind if actor else None,
                workspace_id=workspace_id,
                subject=subject,
                detail=detail,
                alert=alert,
            )
        )


class Part:
    """The database, the clock, randomness and who is told.

    ``on_event`` is called before a change commits: what it cannot put on record (it raises) does
    not happen. It must not write to this database. ``after_event`` is called once the change
    holds; there the gateways' key files are brought up to date and alerts are stored.
    """

    def __init__(
        self,
        database: Database,
        now: Callable[[], float],
        random_bytes: RandomBytes,
        on_event: OnEvent = ignore,
        *,
        after_event: OnEvent = ignore,
        limits: SignInLimits | None = None,
        owner_link: Path | None = None,
    ) -> None:
        self._database = database
        self._now = now
        self._random_bytes = random_bytes
        self._on_event = on_event
        self._after_event = after_event
        self._limits = limits or SignInLimits()
        self._owner_link = owner_link
        self._failures_lock = threading.Lock()
        self._failures = 0
        self._failures_since = 0

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        """One transaction; its events are told before it commits, and again afterwards.

        Raises ConflictError where another one made the same row first (PostgreSQL).
        """
        try:
            with self._database.transaction() as session:
                change = Change(session, int(self._now()))
                yield change
                session.flush()
                for event in change.events:
                    self._on_event(event)
        except IntegrityError:
            raise ConflictError(
                "somebody else made the same thing at the same moment", hint="Try again."
            ) from None
        for event in change.events:
            self._after_event(event)

    def _tell_failure(self, detail: str) -> None:
        """Tell of a failed sign-in; anybody can cause them, so not of all in a minute."""
        now = int(self._now())
        with self._failures_lock:
            if now - self._failures_since >= 60:
                self._failures_since, self._failures = now, 0
            self._failures += 1
            if self._failures > MAX_FAILURES_A_MINUTE:
                return
            if self._failures == MAX_FAILURES_A_MINUTE:
                detail = f"{detail}; the next ones of this minute are left out"
        event = AccessEvent(AccessEventKind.SIGN_IN_FAILED, now, detail=detail)
        self._on_event(event)
        self._after_event(event)
