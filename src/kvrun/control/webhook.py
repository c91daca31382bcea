"""Tell a webhook of alerts: each at least once, also over outages and restarts.

Only the configured address is asked; an answer that sends elsewhere is a failure. What was told is
remembered in one file, replaced atomically.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvrun.config.alerts import AlertsSection
from kvrun.config.secret_file import read_secret
from kvrun.control.alerts import AlertBook
from kvrun.control.notices import (
    Notice,
    Told,
    already_settled,
    json_message,
    pending,
    signature,
    slack_message,
    told_of,
    trial_message,
)
from kvrun.control.schedule import next_delay
from kvrun.control.witness_errors import WitnessUnavailableError
from kvrun.control.witness_http import HttpLimits, post
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file

_FILE = "webhook.json"
_MAX_ANSWER_BYTES = 65_536
_log = logging.getLogger(__name__)


class WebhookError(KvrunError):
    """The receiver did not take a message; it is sent again."""

    exit_code = 3
    status = 503


class NoWebhookError(KvrunError):
    """There is nobody to tell."""

    exit_code = 2


class Tried(msgspec.Struct, frozen=True):
    """How often a notice failed, and when it is tried again (seconds since 1970)."""

    failures: int
    next_at: float


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver was told, by alert, and what failed, by notice."""

    v: int = 1
    told: dict[str, Told] = {}
    tried: dict[str, Tried] = {}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did. ``next_at`` is when the next one has something to do, if known."""

    delivered: int = 0
    failed: int = 0
    waiting: int = 0
    next_at: float | None = None
    message: str = ""


def tell(webhook: Webhook) -> Delivery:
    """Send what is due; what stands in the way goes to the process's log."""
    try:
        done = webhook.deliver()
    except (KvrunError, OSError) as error:
        said = error.message if isinstance(error, KvrunError) else str(error)
        _log.error("the webhook for alerts: %s", said)
        return Delivery()
    if done.failed:
        _log.warning("the webhook for alerts: %s; %d messages wait", done.message, done.waiting)
    return done


@dataclass(slots=True)
class Webhook:
    """Tells the receiver in ``settings`` of the alerts in ``book``; its memory is in ``folder``."""

    settings: AlertsSection
    book: AlertBook
    folder: Path
    now: Callable[[], float]
    chance: Callable[[], float] = random.random
    delivered: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    waiting: int = field(default=0, init=False)

    def deliver(self) -> Delivery:
        """Send what is due now; one pass at a time over all processes.

        Raises SecretFileError, or KvrunError where an alert cannot be read. A receiver that does
        not take a message is no error: the report says so, and when it is tried again.
        """
        if self.settings.webhook_url is None:
            return Delivery()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = hold_file(self.folder / "webhook.lock", str(os.getpid()))
        except FileTakenError:
            return Delivery()
        try:
            done = self._deliver()
        finally:
            os.close(lock)
        self.delivered += done.delivered
        self.failed += done.failed
        self.waiting = done.waiting
        return done

    def _deliver(self) -> Delivery:
        alerts = self.book.all()
        outbox = self._load()
        if outbox is None:
            outbox = Outbox(told=already_settled(alerts))
            self._save(outbox)
        known = {alert.id for alert in alerts}
        outbox = Outbox(
            told={name: told for name, told in outbox.told.items() if name in known},
            tried=outbox.tried,
        )
        waiting = pending(alerts, outbox.told)
        secret = self._secret() if waiting else b""
        delivered = failed = 0
        blocked: set[str] = set()
        message = ""
        for notice in waiting:
            alert_id, tried = notice.alert.id, outbox.tried.get(notice.id)
            # What happened to one alert is told in its order.
            if alert_id in blocked or (tried is not None and tried.next_at > self.now()):
                blocked.add(alert_id)
                continue
            try:
                self.send(notice, secret)
            except WebhookError as error:
                failed, message = failed + 1, error.message
                blocked.add(alert_id)
                outbox = self._failed(outbox, notice, tried)
                if error.status == _UNREACHED:
                    break
                continue
            delivered += 1
            outbox = self._told(outbox, notice)
        left = pending(alerts, outbox.told)
        due = [outbox.tried[item.id].next_at for item in left if item.id in outbox.tried]
        return Delivery(
            delivered=delivered,
            failed=failed,
            waiting=len(left),
            next_at=min(due, default=None),
            message=message,
        )

    def try_out(self) -> str:
        """Send a message that is about no alert; who took it. Raises WebhookError,
        SecretFileError and, where no webhook is configured, NoWebhookError."""
        if self.settings.webhook_url is None:
            raise NoWebhookError(
                "no webhook is configured", hint="Set alerts.webhook_url in kvrun.toml."
            )
        moment, slack = self.now(), self.settings.webhook_format == "slack"
        message_id = f"test-{int(moment)}"
        body = trial_message(message_id, moment, slack=slack)
        self._post(message_id, body, moment, self._secret())
        return self.settings.receiver

    def send(self, notice: Notice, secret: bytes) -> None:
        """Send one notice. Raises WebhookError; status 503 where the receiver was not reached."""
        moment, slack = self.now(), self.settings.webhook_format == "slack"
        body = slack_message(notice) if slack else json_message(notice, moment)
        self._post(notice.id, body, moment, secret)

    def _post(self, message_id: str, body: bytes, moment: float, secret: bytes) -> None:
        settings = self.settings
        headers = {"User-Agent": "kvrun", "X-Kvrun-Delivery": message_id}
        if secret:
            headers["X-Kvrun-Signature"] = signature(secret, body, moment)
        limits = HttpLimits(
            timeout_s=settings.webhook_timeout_s,
            max_bytes=_MAX_ANSWER_BYTES,
            ca_file=settings.webhook_ca_file,
        )
        url = settings.webhook_url or ""
        try:
            answer = post(url, body, "application/json", limits, headers)
        except WitnessUnavailableError as error:
            # Whoever has the address of a webhook may write to it: it is in no message.
            raise WebhookError(error.message.replace(url, settings.receiver)) from None
        if not 200 <= answer.status < 300:
            refused = WebhookError(f"{settings.receiver} answered with status {answer.status}")
            refused.status = answer.status
            raise refused

    def _told(self, outbox: Outbox, notice: Notice) -> Outbox:
        name = notice.alert.id
        told = {**outbox.told, name: told_of(notice, outbox.told.get(name))}
        tried = {key: item for key, item in outbox.tried.items() if key != notice.id}
        return self._save(Outbox(told=told, tried=tried))

    def _failed(self, outbox: Outbox, notice: Notice, before: Tried | None) -> Outbox:
        failures = 1 + (before.failures if before is not None else 0)
        next_at = self.now() + next_delay(0.0, failures, self.chance())
        tried = {**outbox.tried, notice.id: Tried(failures, next_at)}
        return self._save(Outbox(told=outbox.told, tried=tried))

    def _load(self) -> Outbox | None:
        try:
            return msgspec.json.decode((self.folder / _FILE).read_bytes(), type=Outbox)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError):
            _log.warning("what the webhook was told is not readable; every alert is told again")
            return Outbox()

    def _save(self, outbox: Outbox) -> Outbox:
        replace_private_file(
            self.folder / _FILE, msgspec.json.encode(outbox, order="sorted") + b"\n"
        )
        return outbox

    def _secret(self) -> bytes:
        path = self.settings.webhook_secret_file
        return read_secret(path, "alerts.webhook_secret_file") if path is not None else b""


_UNREACHED = 503
