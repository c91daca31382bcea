"""Pages from templates: everything that is put into one is escaped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from kvrun.console import charts, words
from kvrun.console.assets import Assets
from kvrun.erasure.view import class_of
from kvrun.errors import KvrunError

_KEPT_S = 10.0
_MAX_KEPT = 1000
TONES: Final[Mapping[str, str]] = {
    "running": "good",
    "unhealthy": "bad",
    "failed": "bad",
    "starting": "open",
    "draining": "open",
    "stopping": "open",
    "deleting": "open",
    "pass": "good",
    "fail": "bad",
    "inconclusive": "open",
    "unknown": "open",
    "active": "good",
    "expired": "",
    "revoked": "",
}
"""The colour of a state; the word is always beside it."""


@dataclass(frozen=True, slots=True)
class MenuItem:
    """One place in the side bar; ``count`` is how much waits there."""

    name: str
    label: str
    href: str
    count: int = 0


class Counted:
    """Numbers that are dear to count, kept for a few seconds."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[float, int]] = {}

    def count(self, key: object, now: float, counted: Callable[[], int]) -> int:
        """The number of ``key``; ``now`` in seconds. What cannot be counted is no number."""
        at, number = self._kept.get(key, (-_KEPT_S, 0))
        if not 0 <= now - at < _KEPT_S:
            try:
                number = counted()
            except KvrunError:
                number = 0
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = (now, number)
        return number

    def forget(self) -> None:
        """Count all of them anew."""
        self._kept.clear()


class Pages:
    """Renders templates of this package."""

    def __init__(self) -> None:
        self.assets = Assets()
        self.waiting = Counted()
        self._templates = Environment(
            loader=PackageLoader("kvrun.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Callable[..., object]] = {
            "count": words.count,
            "size": words.size,
            "percent": words.percent,
            "duration": words.duration,
            "moment_utc": words.moment_utc,
            "moment_iso": words.moment_iso,
        }
        self._templates.filters.update(filters)
        self._templates.globals.update(
            tones=TONES,
            charts=charts,
            plural=words.plural,
            asset=self.assets.address,
            class_of=class_of,
        )

    def text(self, template: str, values: Mapping[str, object]) -> str:
        """The page or fragment as text."""
        return self._templates.get_template(template).render(values)

    def answer(
        self, template: str, values: Mapping[str, object], *, status: int = 200
    ) -> HTMLResponse:
        """The page or fragment as a response."""
        return HTMLResponse(self.text(template, values), status_code=status)
