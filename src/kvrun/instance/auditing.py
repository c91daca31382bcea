"""Warnings about the audit log for those who run the daemon, and whom its references stand for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from kvrun.audit.settings import LogHealth
from kvrun.errors import KvrunError
from kvrun.instance.journal import Journal
from kvrun.keys.listing import TenantsAsked
from kvrun.keys.source import SessionKeySource

_REMIND_EVERY_S = 3600.0
_MAX_REASON = 200
_log = logging.getLogger(__name__)


class ReferenceGoneError(KvrunError):
    """No living session has a reference of the log."""

    status = 404


class LookUpError(KvrunError):
    """A look-up must name a reference and say why."""

    status = 400


class Identified(msgspec.Struct, frozen=True):
    """Whom a reference of the log stands for."""

    tenant_ref: str
    tenant: str


class AuditWatch:
    """Warns in the daemon's own log when the audit log fills up or cannot be written."""

    def __init__(
        self, health: Callable[[], LogHealth], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._health = health
        self._now = now
        self._warned_at: float | None = None
        self._available = True

    def check(self) -> None:
        """Look once; call it every now and then."""
        health = self._health()
        if health.available != self._available:
            self._available = health.available
            if health.available:
                _log.warning("the audit log can be written again; requests use the cache again")
            else:
                _log.error("the audit log cannot be written (%s)", health.why)
        if not health.nearly_full:
            self._warned_at = None
        elif self._warned_at is None or self._now() - self._warned_at >= _REMIND_EVERY_S:
            self._warned_at = self._now()
            _log.warning(
                "the audit log holds %d of %d bytes that nobody collected; when they are used up, "
                "nothing can be logged: run `kvrun audit collect` or raise audit.quota_bytes",
                health.stored_bytes,
                health.quota_bytes,
            )


class Directory:
    """Maps references of the log back to tenants while their keys live."""

    def __init__(self, keys: SessionKeySource, journal: Journal) -> None:
        self._keys = keys
        self._journal = journal

    def whois(self, arguments: Mapping[str, str]) -> Identified:
        """The tenant behind ``tenant_ref``; the look-up is in the log, with its ``reason``, first.

        Raises LookUpError, ReferenceGoneError, and AuditUnavailableError where the look-up
        cannot be logged.
        """
        reference = arguments.get("tenant_ref", "").strip().lower()
        reason = check_reason(arguments.get("reason", ""))
        if not reference or len(reference) > _MAX_REASON or not reference.isalnum():
            raise LookUpError("a reference is the `tenant_ref` of a record")
        tenant = self._tenant(reference)
        self._journal.looked_up([reference], reason, found=tenant is not None)
        if tenant is None:
            raise ReferenceGoneError(
                f"no living session key made the reference {reference}",
                hint="The tenant's sessions were erased or expired, and nobody can tell any more "
                "who it was; or the reference is another deployment's.",
            )
        return Identified(reference, tenant)

    def _tenant(self, reference: str) -> str | None:
        asked = TenantsAsked(refs=(reference,), named=True)
        rows = self._keys.listing.tenants(asked).rows
        return rows[0].tenant or None if rows else None


def check_reason(text: str) -> str:
    """Why somebody looks a person up, as it is logged. Raises LookUpError."""
    reason = text.strip()
    if not reason or len(reason) > _MAX_REASON or not (reason.isascii() and reason.isprintable()):
        raise LookUpError(
            "a look-up needs a reason, which is logged",
            hint=f"Give one of at most {_MAX_REASON} printable ASCII characters.",
        )
    return reason
