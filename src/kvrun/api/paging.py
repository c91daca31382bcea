"""Lists in pages: bounded, with a cursor that names where the next one begins."""

from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from kvrun.api.problems import RequestRefusedError
from kvrun.deployments.each import Problem

MAX_LIMIT = 200
T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many items at most.")]
Cursor = Annotated[
    str, Query(max_length=500, description="`next` of the page before; empty: the first page.")
]


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    items: list[T] = Field(description="The items of this page.")
    next: str | None = Field(default=None, description="The cursor of the next page, if any.")


class UnreadView(BaseModel):
    """A deployment of which nothing could be read."""

    deployment_id: str
    deployment_name: str
    why: str


class PartialPage(Page[T], Generic[T]):
    """Some items of a list over several deployments."""

    problems: list[UnreadView] = Field(
        default=[], description="Deployments that could not be read: theirs are not in the list."
    )


def unread(problems: Sequence[Problem]) -> list[UnreadView]:
    """As the API shows them."""
    return [
        UnreadView(
            deployment_id=item.deployment_id, deployment_name=item.deployment_name, why=item.why
        )
        for item in problems
    ]


def cut(items: Sequence[T], limit: int, cursor: str) -> tuple[Sequence[T], str | None]:
    """One page of a list that is short enough to be held whole. Raises RequestRefusedError."""
    if not (cursor == "" or (cursor.isascii() and cursor.isdigit() and len(cursor) <= 12)):
        raise RequestRefusedError("the cursor is not one of this list", code="bad_cursor")
    start = int(cursor or 0)
    end = start + limit
    return items[start:end], str(end) if end < len(items) else None
