"""Methods of both clients from one function that builds the request.

A builder's parameters, types and description become the method's; only how its answer is waited
for differs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from kvrun.client.call import Call, Listing
from kvrun.client.link import AsyncLink, Link

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M")


class Group:
    """Some methods over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link


class AsyncGroup:
    """Some methods over one connection, for asyncio."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link


def answer(build: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method that returns the answer."""

    @wraps(build)
    def method(self: Group, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._link.send(build(*args, **kwargs))

    return _described(method, build)


def items(build: Callable[P, Listing[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that iterates over all items of a list."""

    @wraps(build)
    def method(self: Group, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._link.each(build(*args, **kwargs))

    return _described(method, build)


def async_answer(build: Callable[P, Call[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """A coroutine method that returns the answer."""

    @wraps(build)
    async def method(self: AsyncGroup, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._link.send(build(*args, **kwargs))

    return _described(method, build)


def async_items(
    build: Callable[P, Listing[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """A method that iterates, asynchronously, over all items of a list."""

    @wraps(build)
    def method(self: AsyncGroup, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._link.each(build(*args, **kwargs))

    return _described(method, build)


def _described(method: M, build: Callable[..., object]) -> M:
    """Let ``help`` and editors show the builder's parameters after ``self``."""
    own = Parameter("self", Parameter.POSITIONAL_ONLY)
    shown = Signature([own, *signature(build).parameters.values()])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method
