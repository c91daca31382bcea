"""Value types that several sections share: sizes, scope ids, section base class."""

import ipaddress
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(value: object) -> int:
    """Bytes from ``2147483648``, ``"2GiB"`` or ``"1.5 GB"``; ValueError names what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match and match[2].lower() in _UNITS:
            size = Decimal(match[1]) * _UNITS[match[2].lower()]
            if size == int(size):
                return int(size)
    raise ValueError('a size is a whole number of bytes or text such as "512MiB", "2GiB", "10GB"')


def format_size(size: int) -> str:
    """``2147483648`` as ``"2GiB"``; a number that is no round multiple stays in bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def size_text(size: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


ByteSize = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
"""A number of bytes; text with a unit is accepted."""

ScopeId = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
"""Workspace and deployment ids: 1 to 128 printable ASCII characters without spaces."""


class Section(BaseModel):
    """A section of ``kvrun.toml``: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def setting(default: Any, description: str, **constraints: Any) -> Any:
    """A setting with its default, its one-line description and its pydantic constraints."""
    return Field(default=default, description=description, **constraints)
