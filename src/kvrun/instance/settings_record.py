"""Which settings protect a deployment, put on record whenever a daemon starts.

The record is a ``deployment_started`` whose reason begins with ``settings: ``. Where it is another
than at the last start, the same line is kept in ``settings.jsonl`` in the data folder: what was set
before a period can be told without the records before it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from kvrun.audit.errors import AuditError
from kvrun.audit.record import Event
from kvrun.config import KvrunConfig
from kvrun.instance.journal import Journal

SETTINGS_PREFIX = "settings: "
_MAX_BYTES = 16 << 20


class SettingsEntry(msgspec.Struct, frozen=True):
    """What was set from a time on, in seconds since 1970; ``text`` is the record's reason."""

    at: float
    text: str


def protecting_settings(config: KvrunConfig) -> dict[str, str]:
    """The settings that say how strictly a deployment is protected, each as one word.

    ``encryption`` and ``isolation`` are ``on`` always: no setting turns them off.
    """
    deployment = config.deployment
    return {
        "audit.mode": config.audit.mode,
        "context_window": str(deployment.context_window or "model"),
        "encryption": "on",
        "engine": config.engine.kind,
        "isolation": "on",
        "keys.mode": config.keys.mode,
        "keys.root": config.keys.root_address.kind,
        "multi_tenant": _word(config.gateway.multi_tenant),
        "object_tier": _word(config.object_tier),
        "residency.mode": config.residency.mode if config.residency.repository else "none",
        "stateless": _word(deployment.stateless),
        "strict": _word(deployment.strict),
    }


def settings_text(settings: Mapping[str, str]) -> str:
    """As a record's reason."""
    return SETTINGS_PREFIX + " ".join(f"{name}={value}" for name, value in sorted(settings.items()))


def parse_settings(text: str) -> dict[str, str]:
    """The settings in a record's reason; none where it is about something else."""
    if not text.startswith(SETTINGS_PREFIX):
        return {}
    pairs = (pair.partition("=") for pair in text.removeprefix(SETTINGS_PREFIX).split())
    return {name: value for name, sign, value in pairs if name and sign}


def note_settings(
    config: KvrunConfig, journal: Journal, path: Path, now: Callable[[], float]
) -> bool:
    """Put the settings on record; whether they are others than at the last start.

    What cannot be written now is written at the next start: requests are refused by the log's own
    rules, not by this.
    """
    text = settings_text(protecting_settings(config))
    known = read_settings(path)
    is_other = not known or known[-1].text != text
    entry = SettingsEntry(now(), text)
    # The file is signed by nobody, so it never stands for the record.
    journal.deployment_event(Event.DEPLOYMENT_STARTED, text)
    with contextlib.suppress(AuditError, OSError):
        journal.commit()
        if is_other:
            _append(path, entry)
    return is_other


def read_settings(path: Path) -> list[SettingsEntry]:
    """What was set, from the first start on; a line that cannot be read is passed over."""
    found = []
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
            found.append(msgspec.json.decode(line, type=SettingsEntry))
    return found


def _append(path: Path, entry: SettingsEntry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(entry) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _word(value: bool) -> str:
    return "yes" if value else "no"
