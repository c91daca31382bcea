"""A request to the control plane and how its answer is read: pure, shared by both clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from kvrun.client.errors import BadAnswerError, BadIdError, NotAvailableError, error_of

T = TypeVar("T")
PREFIX = "/api/v1"
LONG_S = 660.0
"""How long an answer may take that comes when an erasure or a collection is done, in seconds."""
_READING = frozenset({"GET", "HEAD"})
_PAGE_ITEMS = 200


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Some items of a list; ``next_cursor`` asks for the ones after them, None at the end."""

    items: list[T]
    next_cursor: str | None = msgspec.field(default=None, name="next")
    unavailable: str = ""

    def found(self) -> list[T]:
        """The items. Raises NotAvailableError where nobody can say which there are."""
        if self.unavailable:
            raise NotAvailableError(f"the list cannot be had now: {self.unavailable}")
        return self.items


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request whose answer is a ``T``.

    ``path`` is below ``/api/v1`` and percent-encoded; ``result`` is the type that the answer's
    JSON is read as, ``bytes`` or ``str`` for the body as it is, None where there is nothing to
    read. ``repeatable``: sending it twice does what sending it once does, so it may be tried again.
    ``timeout_s``: how long the answer may take, where that is longer than usual.
    """

    method: str
    path: str
    result: Any
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    repeatable: bool = False
    timeout_s: float | None = None

    @property
    def url(self) -> str:
        """The path with its query."""
        query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in self.query)
        return f"{PREFIX}{self.path}{'?' if query else ''}{query}"

    @property
    def content(self) -> bytes | None:
        """The body as JSON; None for a request without one."""
        return None if self.body is None else msgspec.json.encode(self.body)

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again when nobody knows what became of it."""
        return self.repeatable or self.method in _READING

    def read(self, status: int, content: bytes) -> T:
        """The answer as a ``T``. Raises ApiError for a problem, BadAnswerError for nonsense."""
        if status >= 400:
            raise error_of(status, content)
        if not 200 <= status < 300:
            raise BadAnswerError(
                f"the answer to {self._shown} is a redirect or has status {status}",
                hint="Name the control plane's own address; redirects are not followed.",
            )
        try:
            return cast(T, self._decode(content))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise BadAnswerError(
                f"the answer to {self._shown} cannot be read: {error}",
                hint="Client and control plane may be of different versions.",
            ) from None

    def _decode(self, content: bytes) -> Any:
        if self.result is None:
            return None
        if self.result is bytes:
            return content
        if self.result is str:
            return content.decode()
        return msgspec.json.decode(content, type=self.result)

    @property
    def _shown(self) -> str:
        """The request without its query and ids, which are nobody else's business."""
        return f"{self.method} {PREFIX}/{self.path.split('/')[1]}/..."


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list that comes in pages; their cursor goes into the query, or into the body."""

    first: Call[Page[T]]
    in_body: bool = False

    def after(self, cursor: str) -> Call[Page[T]]:
        """The request for the page that ``cursor`` names."""
        if self.in_body:
            return replace(self.first, body={**(self.first.body or {}), "cursor": cursor})
        kept = tuple(item for item in self.first.query if item[0] != "cursor")
        return replace(self.first, query=(*kept, ("cursor", cursor)))


def listing(path: str, item: Any, **query_values: str | float | bool | None) -> "Listing[Any]":
    """A list that is read with GET, in pages as large as they may be."""
    asked = query(**query_values, limit=_PAGE_ITEMS)
    return Listing(Call("GET", path, Page[item], query=asked))


def path(*parts: str) -> str:
    """The path of these parts, each percent-encoded as a whole. Raises BadIdError."""
    for part in parts:
        if part in ("", ".", ".."):
            raise BadIdError(f"{part!r} is no id or name")
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def query(**values: str | float | bool | None) -> tuple[tuple[str, str], ...]:
    """Query parameters, those that are None or empty left out."""
    return tuple(
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in values.items()
        if value is not None and value != ""
    )


def given(**values: Any) -> dict[str, Any]:
    """A body of the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
