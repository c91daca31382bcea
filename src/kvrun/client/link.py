"""Sending calls, one after the other or with asyncio: the only I/O of the client."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import httpx

from kvrun.client.address import Address, KeyAuth
from kvrun.client.call import Call, Listing
from kvrun.client.errors import UnreachableError, WaitedTooLongError
from kvrun.client.retry import RetryPolicy

T = TypeVar("T")
POLL_S = 1.0
_USER_AGENT = "kvrun-client"


class Link:
    """A connection that waits for each answer. Safe between threads."""

    def __init__(
        self,
        place: Address,
        *,
        timeout_s: float,
        retry: RetryPolicy,
        verify: ssl.SSLContext | bool,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place, self._retry, self._sleep = place, retry, sleep
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=place.url,
            auth=KeyAuth(place),
            headers=_HEADERS,
            verify=verify,
            trust_env=not place.loopback,
            transport=transport,
        )

    def send(self, call: Call[T]) -> T:
        """The answer to ``call``, asked for again where that is safe. Raises ClientError."""
        done = 0
        while True:
            status: int | None = None
            after: str | None = None
            content, failure = b"", ""
            try:
                answer = self._http.request(
                    call.method,
                    call.url,
                    content=call.content,
                    headers=_headers(call),
                    timeout=self._timeout_s if call.timeout_s is None else call.timeout_s,
                )
                status, content = answer.status_code, answer.content
                after = answer.headers.get("Retry-After")
            except httpx.HTTPError as error:
                failure = _reason(error)
            done += 1
            wait = _next_wait(self._retry, call, done, status, after)
            if wait is None:
                break
            self._sleep(wait)
        if status is None:
            raise _unreachable(self._place, call, failure)
        return call.read(status, content)

    def each(self, listing: Listing[T]) -> Iterator[T]:
        """Every item of a list, asking for its pages as they are needed."""
        call = listing.first
        while True:
            page = self.send(call)
            yield from page.found()
            if page.next_cursor is None:
                return
            call = listing.after(page.next_cursor)

    def poll(self, call: Call[T], until: Callable[[T], bool], timeout_s: float, what: str) -> T:
        """Ask once a second until the answer is the wanted one. Raises WaitedTooLongError.

        What the requests take counts; the one that the time ends in is waited for.
        """
        waited = 0.0
        while True:
            began = time.monotonic()
            answer = self.send(call)
            if until(answer):
                return answer
            waited += time.monotonic() - began
            if waited >= timeout_s:
                raise _too_long(what, timeout_s)
            pause = min(POLL_S, timeout_s - waited)
            self._sleep(pause)
            waited += pause

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()


class AsyncLink:
    """The same for asyncio."""

    def __init__(
        self,
        place: Address,
        *,
        timeout_s: float,
        retry: RetryPolicy,
        verify: ssl.SSLContext | bool,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._place, self._retry, self._sleep = place, retry, sleep
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=place.url,
            auth=KeyAuth(place),
            headers=_HEADERS,
            verify=verify,
            trust_env=not place.loopback,
            transport=transport,
        )

    async def send(self, call: Call[T]) -> T:
        """The answer to ``call``, asked for again where that is safe. Raises ClientError."""
        done = 0
        while True:
            status: int | None = None
            after: str | None = None
            content, failure = b"", ""
            try:
                answer = await self._http.request(
                    call.method,
                    call.url,
                    content=call.content,
                    headers=_headers(call),
                    timeout=self._timeout_s if call.timeout_s is None else call.timeout_s,
                )
                status, content = answer.status_code, answer.content
                after = answer.headers.get("Retry-After")
            except httpx.HTTPError as error:
                failure = _reason(error)
            done += 1
            wait = _next_wait(self._retry, call, done, status, after)
            if wait is None:
                break
            await self._sleep(wait)
        if status is None:
            raise _unreachable(self._place, call, failure)
        return call.read(status, content)

    async def each(self, listing: Listing[T]) -> AsyncIterator[T]:
        """Every item of a list, asking for its pages as they are needed."""
        call = listing.first
        while True:
            page = await self.send(call)
            for item in page.found():
                yield item
            if page.next_cursor is None:
                return
            call = listing.after(page.next_cursor)

    async def poll(
        self, call: Call[T], until: Callable[[T], bool], timeout_s: float, what: str
    ) -> T:
        """Ask once a second until the answer is the wanted one. Raises WaitedTooLongError.

        What the requests take counts; the one that the time ends in is waited for.
        """
        waited = 0.0
        while True:
            began = time.monotonic()
            answer = await self.send(call)
            if until(answer):
                return answer
            waited += time.monotonic() - began
            if waited >= timeout_s:
                raise _too_long(what, timeout_s)
            pause = min(POLL_S, timeout_s - waited)
            await self._sleep(pause)
            waited += pause

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()


def _headers(call: Call[T]) -> dict[str, str]:
    return {} if call.body is None else {"Content-Type": "application/json"}


def _next_wait(
    retry: RetryPolicy, call: Call[T], done: int, status: int | None, after: str | None
) -> float | None:
    if not call.may_repeat:
        return None
    chance = random.random()  # noqa: S311  spreads clients out, nothing else
    return retry.wait_s(done, status=status, retry_after=after, chance=chance)


def _reason(error: httpx.HTTPError) -> str:
    """What failed, by kind: the text of such an error may hold the request."""
    return _REASONS.get(type(error).__name__, "the connection broke")


def _unreachable(place: Address, call: Call[T], failure: str) -> UnreachableError:
    unknown = "" if call.may_repeat else " Whether it was carried out is not known."
    return UnreachableError(
        f"the control plane at {place.url} did not answer: {failure}.{unknown}",
        hint="`kvrun control` runs it; KVRUN_API_URL names another address.",
    )


def _too_long(what: str, timeout_s: float) -> WaitedTooLongError:
    return WaitedTooLongError(f"{what} did not happen within {timeout_s:.0f} seconds")


_HEADERS = {"Accept": "application/json, */*;q=0.5", "User-Agent": _USER_AGENT}
_REASONS = {
    "ConnectError": "nothing listens there, or its certificate is not trusted",
    "ConnectTimeout": "no connection in time",
    "ReadTimeout": "no answer in time",
    "UnsupportedProtocol": "the address has another protocol",
    "ProxyError": "the proxy refused",
}
