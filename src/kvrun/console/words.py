"""Numbers, sizes and moments as the pages write them. Pure."""

from datetime import UTC, datetime

from kvrun.config.values import size_text

NONE = "–"
"""What stands where there is nothing to say."""


def count(value: float | None) -> str:
    """A whole number with separators: ``1,234,567``."""
    return NONE if value is None else f"{value:,.0f}"


def size(size_bytes: int | None) -> str:
    """Bytes for people: ``1.5 GiB``."""
    return NONE if size_bytes is None else size_text(size_bytes)


def percent(share: float | None) -> str:
    """A share between 0 and 1: ``62.5 %``."""
    return NONE if share is None else f"{share * 100:.1f} %"


def duration(seconds: float | None) -> str:
    """A length of time for people: ``340 ms``, ``12.4 s``, ``3 h 20 min``, ``7 d``."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    for unit, length, lower in (("d", 1440, "h"), ("h", 60, "min")):
        if minutes >= length:
            rest = (minutes % length) // (60 if unit == "d" else 1)
            return f"{minutes // length} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{minutes} min"


def plural(value: int, one: str, many: str = "") -> str:
    """A count and its noun: ``1 record``, ``3 records``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def moment_utc(at: float) -> str:
    """Seconds since 1970 as ``2026-11-29 23:30:05 UTC``."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def moment_iso(at: float) -> str:
    """Seconds since 1970 as ``2026-11-29T23:30:05Z``, for ``<time datetime>``."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}Z"
