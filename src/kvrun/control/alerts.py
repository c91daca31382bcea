"""Alerts: what a log showed that contradicts what is remembered of it, with the evidence kept.

An alert is a folder of its own with ``alert.json`` and the evidence: both signed checkpoints, the
verifier keys, the records as they were shown, and the consistency proof that does not hold. A
later look at the instance may show something else; this folder stays.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.audit.record import format_time
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError

_FILE = "alert.json"


class AlertKind(StrEnum):
    """What is wrong. Those that are also findings of ``kvrun verify`` have the same name."""

    ROLLED_BACK = "rolled_back"
    FORKED = "forked"
    TRUNCATED = "truncated"
    LOG_MISSING = "log_missing"
    KEY_CHANGED = "key_changed"
    NOT_SIGNED = "not_signed"
    BAD_CHECKPOINT = "bad_checkpoint"
    FOREIGN_LOG = "foreign_log"
    MALFORMED = "malformed"
    MISSING_RECORDS = "missing_records"
    OUT_OF_ORDER = "out_of_order"
    CHAIN_BROKEN = "chain_broken"
    EPOCH_ORDER = "epoch_order"
    TORN = "torn"
    ROOT_MISMATCH = "root_mismatch"
    MANIFEST_MISMATCH = "manifest_mismatch"
    STORED_DIFFERS = "stored_differs"
    WITNESS_REFUSED = "witness_refused"
    OMISSION = "omission"
    OWNER_LINK_USED = "owner_link_used"
    ISOLATION_FAILED = "isolation_failed"


class UnknownAlertError(KvrunError):
    """There is no such alert, or nothing to acknowledge."""

    status = 404


class DeviationError(KvrunError):
    """A log is not what it must be. ``seq`` is the record at which that shows."""

    def __init__(self, kind: AlertKind, seq: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.seq = kind, seq


class FailedProof(msgspec.Struct, frozen=True):
    """The step from the remembered to the shown tree. Roots and hashes in base64.

    ``found_root`` is the root over the first ``old_size`` records as they were shown; ``hashes``
    the RFC 6962 consistency proof made from the shown records, which does not lead to both roots.
    """

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    found_root: str
    hashes: list[str]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. ``stops`` says that collection of the log stopped. Times in seconds.

    ``about`` tells alerts of a kind apart that do not stop it: which witness and what it said, or
    who counted. ``count`` is how many requests are missing.
    """

    id: str
    kind: AlertKind
    log: str
    source: str
    seq: int
    detail: str
    raised_at: float
    stops: bool = True
    about: str = ""
    count: int = 0
    files: list[str] = []
    acknowledged_at: float | None = None
    acknowledged_because: str = ""


class Evidence(msgspec.Struct, kw_only=True):
    """What is kept beside an alert, by file name."""

    files: dict[str, bytes] = {}
    proof: FailedProof | None = None


class AlertBook:
    """All alerts, each in a folder below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[Alert]:
        """Every alert, oldest first. Raises KvrunError for one that cannot be read."""
        paths = self._folder.glob(f"*/{_FILE}") if self._folder.is_dir() else ()
        return sorted((_load(path) for path in paths), key=lambda found: found.raised_at)

    def find(self, alert_id: str) -> Alert:
        """One alert. Raises UnknownAlertError."""
        for alert in self.all():
            if alert.id == alert_id:
                return alert
        raise UnknownAlertError(f"there is no alert {alert_id}")

    def place(self, alert_id: str) -> Path:
        """The folder with an alert's evidence."""
        return self._folder / alert_id

    def prepare(self, log: str, kind: AlertKind, now: float) -> str:
        """The id of a new alert, whose folder is there for evidence already."""
        moment = format_time(now)[:19].replace(":", "").replace("-", "")
        stem = f"{moment}-{kind}-{sha256(log.encode()).hexdigest()[:8]}"
        number = 1
        while (self._folder / f"{stem}-{number}" / _FILE).exists():
            number += 1
        alert_id = f"{stem}-{number}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place(alert_id).mkdir(mode=0o700, exist_ok=True)
        return alert_id

    def save(self, alert: Alert, evidence: Evidence | None = None) -> Alert:
        """Keep an alert and its evidence durably; ``files`` names what is there."""
        folder = self.place(alert.id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in (evidence.files if evidence else {}).items():
            replace_private_file(folder / name, content)
        if evidence is not None and evidence.proof is not None:
            replace_private_file(folder / "proof.json", _pretty(evidence.proof))
        files = sorted(path.name for path in folder.iterdir() if path.name != _FILE)
        saved = msgspec.structs.replace(alert, files=files)
        replace_private_file(folder / _FILE, _pretty(saved))
        return saved

    def acknowledge(self, alert_id: str, reason: str, now: float) -> Alert:
        """Note that a person has seen it and why collection may go on."""
        alert = self.find(alert_id)
        return self.save(
            msgspec.structs.replace(alert, acknowledged_at=now, acknowledged_because=reason)
        )


def encode_hash(value: bytes) -> str:
    """A hash as evidence states it."""
    return base64.b64encode(value).decode()


def _pretty(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


def _load(path: Path) -> Alert:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Alert)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise KvrunError(f"the alert {path} cannot be read: {error}") from None
