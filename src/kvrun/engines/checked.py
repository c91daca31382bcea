"""What ``kvrun engine check`` showed of each engine, as it is kept in ``docs/engine-checks``.

The records are the command's own output. The engines' pages and the console say what they hold.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kvrun.errors import KvrunError

LOG_CHECK = "log-verifies"
"""The check of an engine's collectable log."""

_HERE = Path(__file__).parent / "checks"
_CHECKOUT = Path(__file__).parents[3] / "docs" / "engine-checks"


class CheckRow(msgspec.Struct, frozen=True):
    """One check of one engine."""

    engine: str
    check: str
    met: bool
    detail: str


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the checks: what was checked, when (a UTC day), and on which code and machine."""

    engine: str
    version: str
    date: str
    commit: str
    machine: str
    rows: tuple[CheckRow, ...]

    def met(self, check: str) -> bool | None:
        """Whether a check was met; None where it was not run."""
        return next((row.met for row in self.rows if row.check == check), None)

    @property
    def summary(self) -> str:
        """In one sentence; how many checks there are is not the record's to know."""
        met = sum(row.met for row in self.rows)
        return f"{self.version}, {self.date}: {len(self.rows)} checks run, {met} met."


@cache
def recorded(engine: str) -> CheckRecord | None:
    """The record of an engine's checks; None where none is kept.

    Raises KvrunError for a file that is no record.
    """
    for folder in (_HERE, _CHECKOUT):
        # Names of engines come from a list; a name from elsewhere finds nothing.
        file = folder / f"{Path(engine).name}.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=CheckRecord)
        except OSError:
            continue
        except msgspec.DecodeError as error:
            raise KvrunError(f"{file} is no record of an engine's checks: {error}") from error
    return None


def produces_log(engine: str) -> bool:
    """Whether the engine was shown to come with a log that can be collected and verified."""
    record = recorded(engine)
    return record is not None and record.met(LOG_CHECK) is True
